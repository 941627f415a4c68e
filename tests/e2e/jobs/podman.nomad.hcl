# The driver of Nomad's podman plugin, with the keys that people use.
job "podman" {
  group "g" {
    network {
      port "http" {
        to = 8080
      }
    }

    task "server" {
      driver = "podman"

      config {
        image   = "herdlet-test/busybox:1"
        ports   = ["http"]
        command = "sh"
        args    = ["-c", "echo pod > /site/index.html; exec httpd -f -p 8080 -h /site"]
        volumes = ["local/site:/site"]
        labels = {
          team = "web"
        }
        devices = ["/dev/null:/dev/nothing"]
      }
    }
  }
}
