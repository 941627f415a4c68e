# Mounts in their long form: a directory of the task, a file, a named volume, a memory file system.
job "mounts" {
  group "g" {
    task "t" {
      driver = "docker"

      config {
        image           = "herdlet-test/busybox:1"
        readonly_rootfs = true
        command         = "sh"
        args            = ["-c", "echo a > /data/a; echo b > /cache/b; echo c > /scratch/c; echo d > /d || echo read-only; mount | grep ' /scratch '; exec sleep 100000"]

        mount {
          type   = "bind"
          source = "local"
          target = "/data"
          bind_options {
            propagation = "rprivate"
          }
        }

        mount {
          type     = "volume"
          target   = "/cache"
          source   = "mounts-${NOMAD_SHORT_ALLOC_ID}"
          readonly = false
          volume_options {
            no_copy = true
            labels {
              purpose = "cache"
            }
          }
        }

        mounts = [
          {
            type     = "tmpfs"
            target   = "/scratch"
            readonly = false
            tmpfs_options = {
              size = 100000
              mode = 448
            }
          },
        ]
      }

      resources {
        memory = 32
      }
    }
  }
}
