# Variables of a template, and a file with rights and other delimiters.
job "environment" {
  type = "batch"

  group "g" {
    task "t" {
      driver = "exec"

      template {
        data        = <<EOH
DB_HOST="db.{{ env "node.datacenter" }}.example"
DB_PORT=5432
EOH
        destination = "secrets/db.env"
        env         = true
      }

      template {
        data            = "allocation [[ env \"NOMAD_ALLOC_INDEX\" ]] {{ untouched }}"
        destination     = "local/app.conf"
        perms           = "640"
        left_delimiter  = "[["
        right_delimiter = "]]"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $DB_HOST:$DB_PORT; stat -c %a local/app.conf; cat local/app.conf"]
      }
    }
  }
}
