client { network_speed = 0x10 cpu_total_compute = -5 gc_disk_usage_threshold = 1e2 gc_max_allocs = 07 max_dynamic_port = 99999 min_dynamic_port = 1.5 }
leave_on_interrupt = "true"
