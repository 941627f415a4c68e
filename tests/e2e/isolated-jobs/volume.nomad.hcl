# A host volume, which outlives the allocation.
job "volume" {
  datacenters = ["dc1"]

  group "db" {
    count = 1

    volume "data" {
      type      = "host"
      source    = "shared"
      read_only = false
    }

    ephemeral_disk {
      size    = 150
      migrate = true
      sticky  = true
    }

    task "db" {
      driver = "exec"

      volume_mount {
        volume      = "data"
        destination = "/var/lib/db"
        read_only   = false
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo row >> /var/lib/db/table; wc -l < /var/lib/db/table; exec sleep infinity"]
      }
    }
  }
}
