"""Where the agent under test is: the module that python-nomad's own tests import."""

import os

IP = "127.0.0.1"
NOMAD_PORT = int(os.environ["HERDLET_TEST_PORT"])
NOMAD_TOKEN = os.environ["HERDLET_TEST_TOKEN"]
NOMAD_NAMESPACE = "admin"
