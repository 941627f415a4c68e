# Written for Nomad before 0.12: port_map instead of ports.
job "port-map" {
  datacenters = ["dc1"]

  group "cache" {
    network {
      mbits = 10
      port "http" {}
    }

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
      }
    }
  }
}
