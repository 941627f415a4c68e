name = "\u0000\U0010ffff\x7f\033[31m\\ \" ${x${"}"}}"
region = "[2J"
