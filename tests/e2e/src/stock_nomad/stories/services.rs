//! Services in the servers' own catalogue, their checks, and identities signed by servers.

use crate::stock_nomad::{
    cluster::{StockCluster, assert_has},
    jobs::{UPDATE, command, group, job, shell},
    task,
};

/// Returns a listed service with additional lines `more`.
fn page(name: &str, more: &str) -> String {
    let own = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
    let service = format!(
        "network {{\n  port \"http\" {{\n  }}\n}}\nservice {{\n  name = \"{name}\"\n  port = \"http\"\n  provider = \"nomad\"\n  tags = [\"blue\"]\n{more}}}\n"
    );
    let answers = command("t", &[&own, task::ARGUMENT, "${NOMAD_ADDR_http}"], "");
    job(name, "service", &format!("{UPDATE}{}", group("g", &format!("{service}{answers}"))))
}

pub(super) fn listed(ground: &mut StockCluster) {
    ground.run("page", &page("page", ""));
    let id = ground.single("page", "g");
    ground.until_true("it is listed", || ground.ok(&["service", "list"]).contains("page"));
    assert_has(&ground.ok(&["service", "info", "-verbose", "page"]), &[&id, "127.0.0.1", "blue"]);
    ground.ok(&["job", "stop", "-detach", "page"]);
    ground.until_true("it is no longer listed", || !ground.ok(&["service", "list"]).contains("page"));
}

pub(super) fn checked(ground: &mut StockCluster) {
    let check = "  check {\n    type = \"http\"\n    path = \"/\"\n    interval = \"1s\"\n    timeout = \"1s\"\n  }\n";
    ground.run("checked", &page("checked", check));
    ground.deployment("checked", 0, "successful");
    let id = ground.single("checked", "g");
    assert_has(&ground.ok(&["alloc", "checks", &id]), &["success", "checked"]);
}

pub(super) fn identity(ground: &mut StockCluster) {
    let wants = "identity {\n  env = true\n  file = true\n}\n";
    let body = group("g", &shell("t", "echo $NOMAD_TOKEN | cut -d. -f1; exec sleep 100000", wants));
    ground.run("who", &job("who", "service", &format!("{UPDATE}{body}")));
    let id = ground.single("who", "g");
    let read =
        ["alloc", "exec", "-i=false", "-t=false", &id, "/bin/sh", "-c", "cat $NOMAD_SECRETS_DIR/nomad_token"];
    let token = ground.ok(&read);
    assert!(token.split('.').count() == 3, "expected a signed token, found {token:?}");
    ground.logged(&id, "t", token.split('.').next().unwrap_or("?"));
}
