# A service that ends its work when it is stopped.
job "graceful" {
  group "g" {
    shutdown_delay = "0s"

    task "t" {
      driver       = "exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "60s"
      leader       = true

      logs {
        max_files     = 2
        max_file_size = 1
      }

      config {
        command = "/bin/bash"
        args    = ["-c", "trap 'echo drained > /var/lib/db/drained; exit 0' TERM; echo up; while true; do sleep 1000 & wait $!; done"]
      }

      volume_mount {
        volume      = "data"
        destination = "/var/lib/db"
      }
    }

    volume "data" {
      type   = "host"
      source = "shared"
    }
  }
}
