job "example" {
  datacenters = ["dc1"]
  group "cache" {
    task "redis" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
