# Tasks of a group share their network and a directory.
job "sidecar" {
  datacenters = ["dc1"]

  group "app" {
    network {
      mode = "bridge"
    }

    task "main" {
      driver = "exec"

      config {
        command = "python3"
        args    = ["-m", "http.server", "9000", "--bind", "127.0.0.1", "--directory", "/alloc/data"]
      }
    }

    task "writer" {
      driver = "exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo from the sidecar > /alloc/data/page; exec sleep infinity"]
      }
    }

    task "reader" {
      driver = "exec"

      lifecycle {
        hook    = "poststart"
        sidecar = false
      }

      config {
        command = "/bin/bash"
        args    = ["-c", "until curl -sf http://127.0.0.1:9000/page; do sleep 0.2; done"]
      }
    }
  }
}
