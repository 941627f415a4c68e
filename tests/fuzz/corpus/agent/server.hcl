server { enabled = true bootstrap_expect = 1 encrypt = "x" }
client { enabled = false }
