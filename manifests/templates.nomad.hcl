# The same in Nomad's language: a configuration file that is rendered from a variable, an env file, and a reload by signal.
#
#   herdlet var put nomad/jobs/templates-hcl greeting=hello
#   herdlet apply -f manifests/templates.nomad.hcl --wait
#   herdlet logs templates-hcl      # hello at level info
#   herdlet var put -force nomad/jobs/templates-hcl greeting=goodbye
#   herdlet logs templates-hcl      # goodbye at level info
#
job "templates-hcl" {
  type = "service"

  group "app" {
    task "app" {
      driver = "raw_exec"

      template {
        data          = <<EOH
{{- with nomadVar "nomad/jobs/templates-hcl" -}}
{{ .greeting }}
{{- end }}
EOH
        destination   = "local/app.conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
      }

      template {
        data        = "LEVEL=info\n"
        destination = "secrets/app.env"
        env         = true
      }

      config {
        command = "/bin/sh"
        args = ["-c", <<EOH
show() { echo "$(cat local/app.conf) at level $LEVEL"; }
trap show HUP
show
while :; do sleep 1 & wait $!; done
EOH
        ]
      }
    }
  }
}
