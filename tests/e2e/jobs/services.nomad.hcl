# A service at the address of its container, and another one at the published port.
job "services" {
  group "g" {
    network {
      port "http" {
        to = 8000
      }
    }

    task "server" {
      driver = "docker"

      config {
        image   = "herdlet-test/busybox:1"
        ports   = ["http"]
        command = "sh"
        args    = ["-c", "mkdir /www && echo up > /www/health && exec httpd -f -h /www -p 8000"]
      }

      service {
        name         = "inside"
        port         = 8000
        address_mode = "driver"
        provider     = "nomad"

        check {
          type         = "http"
          path         = "/health"
          address_mode = "driver"
          port         = 8000
          interval     = "1s"
          timeout      = "2m"
        }
      }

      service {
        name     = "outside"
        port     = "http"
        provider = "nomad"

        check {
          type     = "tcp"
          interval = "1s"
          timeout  = "2m"
        }
      }
    }
  }
}
