# A container with names and addresses of its own, in a network that was made with the engine's own program.
variable "address" {
  type = string
}

job "network" {
  group "g" {
    task "t" {
      driver = "docker"

      config {
        image           = "herdlet-test/busybox:1"
        network_mode    = "herdlet-test"
        network_aliases = ["front.internal"]
        ipv4_address    = var.address
        mac_address     = "02:42:0a:d5:00:09"
        command         = "sh"
        args            = ["-c", "ip address show dev eth0; exec sleep 100000"]
      }

      # Others can reach the addresses of such a network, so services have them without an `address_mode`.
      service {
        name     = "addressed"
        port     = 8000
        provider = "nomad"
      }
    }
  }
}
