# A task with as few rights as it needs.
job "hardened" {
  group "g" {
    task "t" {
      driver = "docker"
      user   = "65534:65534"

      config {
        image           = "herdlet-test/busybox:1"
        command         = "sh"
        args            = ["-c", "id; grep -e CapEff -e NoNewPrivs /proc/self/status; ulimit -n; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; exec sleep 100000"]
        readonly_rootfs = true
        cap_drop        = ["ALL"]
        cap_add         = ["NET_BIND_SERVICE"]
        security_opt    = ["no-new-privileges"]
        pids_limit      = 50
        group_add       = ["4321"]
        ulimit {
          nofile = "1000:2000"
          nproc  = "30000:30000"
        }
        sysctl = {
          "net.ipv4.ip_unprivileged_port_start" = "80"
        }
      }
    }
  }
}
