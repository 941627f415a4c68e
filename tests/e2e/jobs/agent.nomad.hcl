# A privileged agent on each node, which sees the processes and files of the machine.
variable "data" {
  type = string
}

job "agent" {
  type = "system"

  group "agent" {
    task "agent" {
      driver = "docker"

      config {
        image        = "herdlet-test/busybox:1"
        privileged   = true
        network_mode = "host"
        pid_mode     = "host"
        command      = "/bin/sh"
        args         = ["-c", "ls /host; ls -d /proc/[0-9]* | wc -l; echo counted; exec sleep 100000"]
        volumes = [
          "${var.data}:/host:ro,rslave",
          "/proc:/host-proc:ro",
        ]
      }
    }
  }
}
