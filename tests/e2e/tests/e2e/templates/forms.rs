//! The job files in `tests/e2e/templates`: templates in the forms that public job files use, applied unchanged.

use std::fs;

use herdlet_e2e::{
    agent::{Agent, Setup},
    ports,
    program::project,
    wait,
};

use super::{QUICK, path_of, put, until_file};
use crate::common::{is_root, job, sleeper};

type Check = fn(&mut Agent);

const FORMS: [(&str, Check); 5] = [
    ("certificate", certificate),
    ("env-file", env_file),
    ("load-balancer", load_balancer),
    ("prometheus", prometheus),
    ("traefik", traefik),
];

#[test]
fn every_form_has_a_check() {
    let entries = fs::read_dir(project().join("tests/e2e/templates")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().replace(".nomad.hcl", ""));
    let mut found: Vec<String> = names.collect();
    found.sort();
    assert_eq!(found, FORMS.map(|(name, _)| name));
}

#[test]
fn public_forms_are_rendered() {
    if !is_root() {
        return;
    }
    let setup = Setup::default().config(format!("{QUICK}host_ip: 127.0.0.1\n{}", ports::for_tasks()));
    let mut agent = Agent::start_with(setup);
    for (_, check) in FORMS {
        check(&mut agent);
    }
    agent.finish();
}

fn apply(agent: &Agent, name: &str) {
    let file = project().join(format!("tests/e2e/templates/{name}.nomad.hcl"));
    agent.cli(&["apply", "-f", &file.display().to_string()]).success();
}

fn app(name: &str, count: usize, tags: &str) -> String {
    let more = format!("services: [{{name: {name}, provider: nomad, port: http, tags: [{tags}]}}]");
    let group = format!("count: {count}\nnetwork: {{ports: {{http: {{}}}}}}");
    job(&format!("job-{name}-{}", tags.replace([',', ' '], "")), "service", &group, &[sleeper("t", &more)])
}

fn port(agent: &Agent, alloc: &str, label: &str) -> u16 {
    agent.alloc(alloc).unwrap().port(label).unwrap()
}

fn certificate(agent: &mut Agent) {
    put(agent, "nomad/jobs/certificate", &["certificate=-----BEGIN one"]);
    apply(agent, "certificate");
    agent.cli(&["wait", "certificate"]).success();
    let alloc = "certificate.server[0]";
    until_file(agent, alloc, ("server/secrets/tls.pem", "-----BEGIN one"));
    put(agent, "nomad/jobs/certificate", &["certificate=-----BEGIN two"]);
    until_file(agent, alloc, ("server/secrets/installed.pem", "-----BEGIN two"));
    put(agent, "nomad/jobs/certificate", &["certificate=other"]);
    agent.until_printed(&["describe", "certificate"], |text| text.contains("exited with code: 1"));
    until_file(agent, alloc, ("server/secrets/installed.pem", "-----BEGIN two"));
}

fn env_file(agent: &mut Agent) {
    put(agent, "nomad/jobs/env-file", &["user=me", "password=a\"b #c"]);
    put(agent, "nomad/jobs/env-file/app", &["level=debug"]);
    apply(agent, "env-file");
    agent.cli(&["wait", "env-file"]).success();
    let alloc = "env-file.app[0]";
    let text = fs::read_to_string(path_of(agent, alloc, "app/secrets/file.env")).unwrap();
    for line in ["# rendered for app", "USER=\"me\"", "PASSWORD=\"a\\\"b #c\"", "APP_LEVEL=debug"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    put(agent, "nomad/jobs/env-file", &["user=me", "password=secret"]);
    wait::until_true("the task has the new environment", || {
        let log = fs::read_to_string(path_of(agent, alloc, "app/local/log")).unwrap_or_default();
        log.lines().last() == Some("postgres://me:secret@0.db/app secret debug")
    });
}

fn load_balancer(agent: &mut Agent) {
    apply(agent, "load-balancer");
    agent.cli(&["wait", "load-balancer"]).success();
    let alloc = "load-balancer.edge[0]";
    let bind = format!(
        "defaults\n  mode http\n\nfrontend edge\n  bind *:{}\n  default_backend app\n\nbackend app\n  balance roundrobin\n",
        port(agent, alloc, "http")
    );
    until_file(agent, alloc, ("haproxy/local/haproxy.cfg", &format!("{bind}  # no instances\n")));
    until_file(
        agent,
        alloc,
        ("nginx/local/upstreams.conf", "\nupstream app_none { server 127.0.0.1:65535; }\n"),
    );
    agent.apply_and_wait(&app("app", 1, "blue-green"));
    agent.apply_and_wait(&app("app", 1, "other, blue-green"));
    let ports =
        [port(agent, "job-app-blue-green.g[0]", "http"), port(agent, "job-app-otherblue-green.g[0]", "http")];
    wait::until_true("both files have all instances", || {
        let haproxy = fs::read_to_string(path_of(agent, alloc, "haproxy/local/haproxy.cfg")).unwrap();
        let nginx = fs::read_to_string(path_of(agent, alloc, "nginx/local/upstreams.conf")).unwrap();
        let in_order = |a: u16, b: u16| {
            haproxy == format!("{bind}  server app0 127.0.0.1:{a} check\n  server app1 127.0.0.1:{b} check\n")
                && nginx
                    == format!(
                        "upstream app_blue_green {{\n  server 127.0.0.1:{a};\n  server 127.0.0.1:{b};\n}}\nupstream app_other {{\n  server 127.0.0.1:{};\n}}\n",
                        ports[1]
                    )
        };
        in_order(ports[0], ports[1]) || in_order(ports[1], ports[0])
    });
    for task in ["haproxy", "nginx"] {
        wait::until_true("it was reloaded", || {
            fs::read_to_string(path_of(agent, alloc, &format!("{task}/local/log")))
                .is_ok_and(|text| text.contains("reloaded"))
        });
    }
}

fn prometheus(agent: &mut Agent) {
    agent.apply_and_wait(&app("exporter", 1, "metrics"));
    apply(agent, "prometheus");
    agent.cli(&["wait", "prometheus"]).success();
    let alloc = agent.alloc("prometheus.monitoring[0]").unwrap();
    let text = format!(
        "---\nglobal:\n  scrape_interval: 5s\n  external_labels:\n    job: prometheus\n    alloc: {}\n\nscrape_configs:\n  - job_name: \"exporter\"\n    static_configs:\n      - targets:\n          - \"127.0.0.1:{}\"\n",
        &alloc.id()[..8],
        port(agent, "job-exporter-metrics.g[0]", "http")
    );
    until_file(agent, &alloc.name(), ("server/local/prometheus.yml", &text));
    let alerts = "groups:\n  - name: monitoring\n    rules:\n      - alert: Down\n        expr: up == 0\n        annotations:\n          summary: \"{{ $labels.instance }} is down for {{ $value }} minutes\"\n";
    until_file(agent, &alloc.name(), ("server/local/alerts.yml", alerts));
}

fn traefik(agent: &mut Agent) {
    apply(agent, "traefik");
    agent.cli(&["wait", "traefik"]).success();
    let alloc = "traefik.traefik[0]";
    let text = format!(
        "[entryPoints]\n    [entryPoints.web]\n    address = \":{}\"\n    [entryPoints.traefik]\n    address = \":{}\"\n\n[log]\n    level = \"INFO\"\n\n[api]\n    dashboard = true\n    insecure  = true\n",
        port(agent, alloc, "web"),
        port(agent, alloc, "admin")
    );
    until_file(agent, alloc, ("traefik/local/traefik.toml", &text));
    until_file(agent, alloc, ("traefik/secrets/users.toml", "# no users\n"));
    put(agent, "nomad/jobs/traefik", &["users=a:1,b:\"2"]);
    let users = "[http.middlewares.auth.basicAuth]\n  users = [\"a:1\", \"b:\\\"2\"]\n";
    until_file(agent, alloc, ("traefik/secrets/users.toml", users));
    until_file(
        agent,
        alloc,
        (
            "traefik/local/traefik.toml",
            &text.replace("= true\n", "= false\n").replace("dashboard = false", "dashboard = true"),
        ),
    );
}
