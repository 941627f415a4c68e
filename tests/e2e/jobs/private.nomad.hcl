# An image of a registry that asks for a user.
job "private" {
  group "g" {
    task "t" {
      driver = "docker"

      config {
        image              = "registry.test:5000/herdlet-test/busybox:1"
        force_pull         = true
        image_pull_timeout = "10m"
        command            = "sleep"
        args               = ["100000"]

        auth {
          username       = "herdlet"
          password       = "not-a-real-password"
          server_address = "registry.test:5000"
        }
      }
    }
  }
}
