# One on each node, with constraints on it.
job "system" {
  datacenters = ["dc1"]
  type        = "system"
  priority    = 80

  constraint {
    attribute = "${attr.kernel.name}"
    value     = "linux"
  }

  group "agent" {
    task "collector" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo collecting on ${attr.kernel.name}; exec sleep infinity"]
      }

      resources {
        cpu        = 50
        memory     = 32
        memory_max = 64
      }
    }
  }
}
