# A certificate and its key as files, and a script that checks and installs them in the running task.
job "certificate" {
  group "server" {
    task "server" {
      driver = "raw_exec"

      template {
        data        = "{{ with nomadVar \"nomad/jobs/certificate\" }}{{ .certificate }}{{ end }}"
        destination = "secrets/tls.pem"
        perms       = "0600"
        splay       = "0s"
        change_mode = "script"

        change_script {
          command       = "/bin/sh"
          args          = ["${NOMAD_TASK_DIR}/install.sh", "secrets/tls.pem"]
          timeout       = "2m"
          fail_on_error = false
        }

        wait {
          min = "0s"
          max = "0s"
        }
      }

      template {
        destination = "local/install.sh"
        perms       = "0755"
        once        = false
        change_mode = "noop"
        data        = <<EOF
#!/bin/sh
grep -q '^-----BEGIN' "$1" || { echo "not a certificate"; exit 1; }
cp "$1" "$NOMAD_SECRETS_DIR/installed.pem"
EOF
      }

      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
