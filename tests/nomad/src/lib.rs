//! For tests: a stand-in for the servers of a Nomad cluster.
