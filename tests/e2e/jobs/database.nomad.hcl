# A database that keeps its files in a directory of the host, on a fixed port.
variable "data" {
  type = string
}

variable "port" {
  type = number
}

job "database" {
  group "database" {
    network {
      port "db" {
        static = var.port
        to     = 5432
      }
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "5s"
      mode     = "delay"
    }

    task "server" {
      driver       = "docker"
      kill_signal  = "SIGTERM"
      kill_timeout = "30s"
      user         = "nobody"

      config {
        image   = "herdlet-test/busybox:1"
        ports   = ["db"]
        volumes = ["${var.data}:/var/lib/database"]
        args = [
          "sh", "-c",
          "trap 'echo closed >> /var/lib/database/journal; exit 0' TERM; echo opened by $(id -u) >> /var/lib/database/journal; nc -ll -p 5432 -e cat /var/lib/database/journal & wait",
        ]
      }

      env {
        DATABASE_PASSWORD = "example"
      }

      resources {
        cpu        = 200
        memory     = 64
        memory_max = 128
      }
    }
  }
}
