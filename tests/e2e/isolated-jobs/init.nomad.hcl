# A task that runs before the main one, and one that cleans up after it.
job "init" {
  type = "batch"

  group "g" {
    task "migrate" {
      driver = "exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "bash"
        args    = ["-c", "echo migrated > $NOMAD_ALLOC_DIR/data/state"]
      }
    }

    task "main" {
      driver = "exec"

      config {
        command = "bash"
        args    = ["-c", "cat $NOMAD_ALLOC_DIR/data/state"]
      }
    }

    task "cleanup" {
      driver = "exec"

      lifecycle {
        hook = "poststop"
      }

      config {
        command = "rm"
        args    = ["-v", "/alloc/data/state"]
      }
    }
  }
}
