//! Warnings and refusals about networks: where nothing leads, although it looks so.

use super::read;

/// The messages about a group with these fields; a refusal counts as one.
fn found(group: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: w}}\nspec:\n  groups:\n    - {{name: g, {group}}}\n"
    );
    match read(&text) {
        Ok(set) => {
            set.warnings.into_iter().map(|warning| format!("{}: {}", warning.path, warning.message)).collect()
        }
        Err(problems) => vec![problems.to_string()],
    }
}

fn task(driver: &str, config: &str) -> String {
    format!("tasks: [{{name: t, driver: {driver}, config: {{{config}}}}}]")
}

/// Users of Compose wrote `to: 80`, and their program listened on 80 of the machine.
#[test]
fn numbers_that_lead_nowhere_are_warned_about() {
    let of = |network: &str, driver: &str| {
        let config = if driver == "docker" { "image: x" } else { "command: x" };
        found(&format!("network: {{{network}}}, {}", task(driver, config))).join("")
    };
    for driver in ["exec", "raw_exec", "java", "qemu"] {
        let config = match driver {
            "java" => "jar_path: x",
            "qemu" => "image_path: x",
            _ => "command: x",
        };
        let network = "network: {ports: {http: {static: 9010, to: 80}}}";
        let message = found(&format!("{network}, {}", task(driver, config))).join("");
        assert!(
            message.contains("ports.http.to: has no effect")
                && message.contains("from 9010 to 80; write `mode: bridge`"),
            "{driver}: {message}"
        );
    }
    assert!(of("ports: {http: {to: 80}}", "exec").contains("listen on `${NOMAD_PORT_http}`"));
    assert_eq!(of("ports: {http: {static: 80, to: 80}}", "exec"), "");
    assert_eq!(of("mode: bridge, ports: {http: {static: 9010, to: 80}}", "exec"), "");
    assert_eq!(of("ports: {http: {static: 9010, to: 80}}", "docker"), "");
}

/// `--bind ${NOMAD_IP_http}` with `mode: bridge` bound the allocation's own loopback address.
#[test]
fn addresses_of_the_machine_in_another_network_are_warned_about() {
    let of = |mode: &str, args: &str| {
        let network = format!("network: {{mode: {mode}, ports: {{http: {{to: 80}}, a-b: {{}}}}}}");
        found(&format!("{network}, {}", task("exec", &format!("command: x, args: [{args}]"))))
            .into_iter()
            .filter(|message| message.contains("0.0.0.0"))
            .collect::<String>()
    };
    for args in [
        r#""--bind", "${NOMAD_IP_http}""#,
        r#""--listen=${NOMAD_ADDR_http}""#,
        r#""--http.listen", "tcp://${NOMAD_ADDR_a_b}""#,
        r#""-c", "serve --host ${NOMAD_IP_http} --port 80""#,
    ] {
        assert!(of("bridge", args).contains("is an address of the machine"), "{args}");
        assert_eq!(of("host", args), "", "{args}");
    }
    for args in [
        r#""--advertise", "${NOMAD_ADDR_http}""#,
        r#""--bind", "0.0.0.0", "${NOMAD_IP_http}""#,
        r#""--bind", "${NOMAD_ALLOC_IP_http}""#,
        r#""-c", "curl ${NOMAD_ADDR_http}""#,
    ] {
        assert_eq!(of("bridge", args), "", "{args}");
    }
}

/// The advice for a group's service led to a job that was accepted, and whose service was never registered.
#[test]
fn networks_of_drivers_are_needed_where_there_is_none() {
    let service = "services: [{name: s, port: \"80\", address_mode: driver}]";
    let of_task = |network: &str, driver: &str| {
        let config = match driver {
            "docker" => "image: x",
            "mock" => "",
            _ => "command: x",
        };
        found(&format!("{network} tasks: [{{name: t, driver: {driver}, config: {{{config}}}, {service}}}]"))
            .join("")
    };
    let bridge = "network: {mode: bridge},";
    let of_group = found(&format!("{bridge} {service}, {}", task("exec", "command: x"))).join("");
    assert!(of_group.contains("address_mode: needs a network of the task's own"), "{of_group}");
    for driver in ["exec", "docker"] {
        assert!(of_task(bridge, driver).contains("write `address_mode: alloc`"), "{driver}");
    }
    assert!(of_task("", "raw_exec").contains("tasks of raw_exec are in the machine's network"));
    for (network, driver) in [("", "docker"), ("", "mock"), (bridge, "mock")] {
        assert_eq!(of_task(network, driver), "", "{driver}");
    }
}

#[test]
fn checks_of_the_machine_by_a_number_are_warned_about() {
    let of = |port: &str, mode: &str, check: &str| {
        let network = "network: {mode: bridge, ports: {http: {to: 80}}}";
        let check = format!("checks: [{{type: tcp, interval: 1s, timeout: 1s{check}}}]");
        let service = format!("services: [{{name: s, port: \"{port}\", address_mode: {mode}, {check}}}]");
        found(&format!("{network}, {service}, {}", task("exec", "command: x"))).join("")
    };
    assert!(of("8080", "alloc", "").contains("checks[0]: the check tests port 8080 of the machine"));
    for (port, mode, check) in [
        ("8080", "alloc", ", address_mode: alloc"),
        ("http", "alloc", ""),
        ("8080", "auto", ""),
        ("8080", "alloc", ", port: http"),
    ] {
        assert_eq!(of(port, mode, check), "", "{port} {mode} {check}");
    }
}

/// It was accepted, and failed at each run, although the driver can't execute commands.
#[test]
fn script_checks_in_virtual_machines_are_refused() {
    let of = |kind: &str| {
        let check = format!("checks: [{{type: {kind}, interval: 1s, timeout: 1s}}]");
        let service = format!("services: [{{name: s, port: \"80\", {check}}}]");
        found(&format!("tasks: [{{name: t, driver: qemu, config: {{image_path: x}}, {service}}}]")).join("")
    };
    let refused = of("script, command: x");
    assert!(refused.contains("checks[0].type: the driver qemu can't execute commands"), "{refused}");
    assert_eq!(of("tcp"), "");
}
