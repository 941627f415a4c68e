# A process of the machine in a network of its own.
job "raw-bridge" {
  datacenters = ["dc1"]

  group "web" {
    count = 2

    network {
      mode = "bridge"

      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver = "raw_exec"

      config {
        command = "sh"
        args    = ["-c", "echo raw ${NOMAD_ALLOC_INDEX} > local/index.html; exec python3 -m http.server 8080 --directory local"]
      }
    }
  }
}
