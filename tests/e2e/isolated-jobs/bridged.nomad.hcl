# The same in a network of its own, on a fixed port of the machine.
variable "port" {
  type = number
}

job "bridged" {
  datacenters = ["dc1"]

  group "web" {
    network {
      mode = "bridge"

      port "http" {
        static = var.port
        to     = 8080
      }
    }

    service {
      name     = "bridged"
      port     = "http"
      provider = "nomad"
    }

    task "server" {
      driver = "exec"

      config {
        command = "python3"
        args    = ["-m", "http.server", "8080", "--bind", "0.0.0.0", "--directory", "local"]
      }

      template {
        data        = "port {{ env \"NOMAD_PORT_http\" }} of the network\n"
        destination = "local/index.html"
      }
    }
  }
}
