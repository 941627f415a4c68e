# A task that expects a terminal and an init.
job "terminal" {
  group "g" {
    task "t" {
      driver = "docker"

      config {
        image       = "herdlet-test/busybox:1"
        command     = "sh"
        args        = ["-c", "tty; exec sleep 100000"]
        tty         = true
        interactive = true
        init        = true
        shm_size    = 67108864
        ipc_mode    = "private"
      }
    }
  }
}
