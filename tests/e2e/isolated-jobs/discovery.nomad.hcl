# A client that finds a service of the catalogue, and reaches it from a network of its own.
job "discovery" {
  group "server" {
    network {
      mode = "bridge"

      port "http" {
        to = 8000
      }
    }

    service {
      name         = "discovered"
      port         = "http"
      provider     = "nomad"
      address_mode = "alloc"
    }

    task "server" {
      driver = "exec"

      config {
        command = "python3"
        args    = ["-m", "http.server", "8000", "--directory", "/local"]
      }

      template {
        data        = "found"
        destination = "local/index.html"
      }
    }
  }

  group "client" {
    network {
      mode = "bridge"
    }

    task "client" {
      driver = "exec"

      template {
        data        = "{{ range nomadService \"discovered\" }}URL=http://{{ .Address }}:{{ .Port }}/{{ end }}"
        destination = "local/url.env"
        env         = true
      }

      config {
        command = "bash"
        args    = ["-c", "test -n \"$URL\" || exec sleep infinity; until curl -sf $URL; do sleep 0.2; done; exec sleep infinity"]
      }
    }
  }
}
