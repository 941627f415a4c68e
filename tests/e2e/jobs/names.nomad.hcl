# What a container is called, resolves and runs.
job "names" {
  group "g" {
    task "t" {
      driver = "docker"

      config {
        image              = "herdlet-test/busybox:1"
        entrypoint         = ["/bin/sh", "-c"]
        command            = "hostname; cat /sys/class/net/eth0/address; cat /etc/hosts /etc/resolv.conf; exec sleep 100000"
        hostname           = "front"
        mac_address        = "02:42:0a:d5:00:07"
        extra_hosts        = ["db.internal:10.9.8.7"]
        dns_servers        = ["10.1.1.1", "10.1.1.2"]
        dns_search_domains = ["internal"]
        dns_options        = ["ndots:2"]
        labels = {
          team                = "web"
          "com.example/owner" = "${NOMAD_JOB_NAME}"
        }
      }
    }
  }
}
