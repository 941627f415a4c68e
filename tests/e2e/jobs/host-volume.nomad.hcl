# A volume of the host that the agent's config names, mounted read-only and writable.
job "host-volume" {
  group "g" {
    volume "shared" {
      type   = "host"
      source = "shared"
    }

    task "writer" {
      driver = "docker"

      volume_mount {
        volume      = "shared"
        destination = "/shared"
      }

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "echo written > /shared/file; exec sleep 100000"]
      }
    }

    task "reader" {
      driver = "docker"

      volume_mount {
        volume      = "shared"
        destination = "/srv/shared"
        read_only   = true
      }

      config {
        image   = "herdlet-test/busybox:1"
        command = "sh"
        args    = ["-c", "while ! cat /srv/shared/file; do sleep 0.1; done; echo x > /srv/shared/other || echo refused; exec sleep 100000"]
      }
    }
  }
}
