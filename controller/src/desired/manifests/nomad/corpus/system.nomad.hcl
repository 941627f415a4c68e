# Something that runs once on each machine.
job "exporter" {
  type = "system"

  group "metrics" {
    count = 1

    task "serve" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["infinity"]
      }
    }
  }
}
