# A web server on a port that Nomad chooses, with a health check.
job "web" {
  datacenters = ["*"]
  type        = "service"

  update {
    max_parallel     = 1
    min_healthy_time = "1s"
    auto_revert      = true
  }

  group "web" {
    network {
      port "http" {}
    }

    service {
      name     = "web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "30s"
      }
    }

    task "server" {
      driver = "exec"

      template {
        data        = "site of {{ env \"NOMAD_ALLOC_NAME\" }}"
        destination = "local/site/index.html"
      }

      config {
        command = "/usr/bin/python3"
        args    = ["-m", "http.server", "${NOMAD_PORT_http}", "--directory", "/local/site"]
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
