# A server in the network of the machine.
variable "port" {
  type = number
}

job "host-network" {
  group "g" {
    network {
      mode = "host"
      port "http" {
        static = var.port
      }
    }

    service {
      name     = "host-network"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/index.html"
        interval = "1s"
        timeout  = "2m"
      }
    }

    task "server" {
      driver = "docker"

      config {
        image        = "herdlet-test/busybox:1"
        network_mode = "host"
        command      = "sh"
        args = [
          "-c",
          "mkdir /www && echo host > /www/index.html && exec httpd -f -h /www -p ${NOMAD_IP_http}:${NOMAD_PORT_http}",
        ]
      }
    }
  }
}
