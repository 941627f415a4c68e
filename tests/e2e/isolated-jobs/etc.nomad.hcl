# A config file where the program expects it, in a root of its own.
job "etc" {
  group "g" {
    task "t" {
      driver = "exec"

      template {
        data          = "{{ with nomadVar \"nomad/jobs/etc\" }}level = {{ .level }}{{ end }}\n"
        destination   = "etc/app/app.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }

      config {
        command = "/bin/bash"
        args    = ["-c", "trap 'cat /etc/app/app.conf' HUP; cat /etc/app/app.conf; while true; do sleep 1000 & wait $!; kill $!; done"]
      }
    }
  }
}
