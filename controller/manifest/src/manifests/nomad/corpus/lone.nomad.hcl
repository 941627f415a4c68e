job "lone" {
  type = "batch"
  task "only" {
    driver = "mock"
    config {
      run_for   = "2s"
      exit_code = 3
    }
  }
}
