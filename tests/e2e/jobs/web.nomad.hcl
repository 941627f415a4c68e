# A web server with a volume of its task directory and a port that Nomad chooses.
job "web" {
  datacenters = ["*"]
  type        = "service"

  group "web" {
    count = 2

    network {
      port "http" {
        to = 8080
      }
    }

    task "httpd" {
      driver = "docker"

      config {
        image   = "herdlet-test/busybox:1"
        ports   = ["http"]
        command = "sh"
        args    = ["-c", "echo site of ${NOMAD_ALLOC_INDEX} > /site/index.html; exec httpd -f -p 8080 -h /site"]
        volumes = ["local/site:/site"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
