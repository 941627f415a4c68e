# Written for Nomad before 0.12: each task has its own network.
variable "port" {
  type = number
}

job "old-network" {
  datacenters = ["dc1"]

  group "app" {
    task "cache" {
      driver = "docker"

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "mkdir /www && echo port $NOMAD_PORT_http > /www/index.html && exec httpd -f -h /www -p 6379"]

        port_map {
          http = 6379
        }
      }

      resources {
        cpu    = 50
        memory = 32

        network {
          mbits = 10

          port "http" {
            static = var.port
          }
        }
      }

      service {
        name         = "old-cache"
        provider     = "nomad"
        port         = "http"
        address_mode = "driver"
      }
    }

    task "web" {
      driver = "docker"

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "mkdir /www && echo cache $NOMAD_ADDR_cache_http > /www/index.html && exec httpd -f -h /www -p $NOMAD_PORT_http"]
      }

      resources {
        cpu    = 50
        memory = 32

        network {
          port "http" {}
        }
      }

      service {
        name     = "old-web"
        provider = "nomad"
        port     = "http"

        check {
          type     = "tcp"
          interval = "2s"
          timeout  = "60s"
        }
      }
    }
  }
}
