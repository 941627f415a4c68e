# A device of the machine, and no network.
job "devices" {
  group "g" {
    task "t" {
      driver = "docker"

      config {
        image        = "herdlet-test/busybox:1"
        network_mode = "none"
        command      = "sh"
        args         = ["-c", "ls /dev/tunnel && ls /sys/class/net && exec sleep 100000"]
        devices = [
          {
            host_path          = "/dev/fuse"
            container_path     = "/dev/tunnel"
            cgroup_permissions = "rw"
          },
        ]
      }
    }
  }
}
