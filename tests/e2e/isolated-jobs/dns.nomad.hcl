# Name servers of its own.
job "dns" {
  group "g" {
    network {
      mode = "bridge"

      dns {
        servers  = ["192.0.2.53", "192.0.2.54"]
        searches = ["internal.example"]
        options  = ["ndots:2"]
      }
    }

    task "t" {
      driver = "exec"

      config {
        command = "bash"
        args    = ["-c", "cat /etc/resolv.conf; exec sleep infinity"]
      }
    }
  }
}
