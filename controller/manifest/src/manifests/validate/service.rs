//! `services` and `checks`, by Nomad's rules.

mod address;

use std::collections::BTreeMap;

use herdlet_api_types::Duration;
use herdlet_api_types::job::{
    AddressMode, Check, CheckKind, ConsulAccess, OnUpdate, Provider, Service, Weights,
};
use herdlet_api_types::manifest::{CheckType, Span, service as spec};
use herdlet_api_types::names::{NameKind, SERVICE_RULE};

use super::text::no_such;
use super::{Findings, GroupContext, identity, text};
use crate::yaml::Trail;

mod published;

pub(super) use published::of_job as published_ports;

/// Minimum interval and timeout of a check.
const CHECK_TIME_MIN: Duration = Duration::from_secs(1);
/// Methods that an HTTP check may use.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// Validates the services of a group, that the whole group uses one catalogue, and that ids differ.
pub(super) fn of_group(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, group, trail, .. } = *context;
    list(context, spec.services.as_deref(), &group.services, &trail.field("services"), findings);
    let mut first: Option<(Provider, String)> = None;
    let tasks = trail.field("tasks");
    one_provider(&group.services, &trail.field("services"), &mut first, findings);
    let mut ids = BTreeMap::new();
    let owner = format!("group-{}", group.name);
    distinct_ids((&owner, &group.services), &trail.field("services"), &mut ids, findings);
    for (index, task) in group.tasks.iter().enumerate() {
        one_provider(&task.services, &tasks.item(index).field("services"), &mut first, findings);
        let trail = tasks.item(index);
        distinct_ids((&task.name, &task.services), &trail.field("services"), &mut ids, findings);
    }
}

/// An id in a catalogue joins the owner's name, the service's and the port's by dashes, as in Nomad. So services of
/// different owners can have the same id, and one would replace the other: service `b-c` of task `a`, and service `c`
/// of task `a-b`. Equal names within one owner are another problem.
fn distinct_ids(
    (owner, services): (&str, &[Service]),
    trail: &Trail<'_>,
    ids: &mut BTreeMap<String, String>,
    findings: &mut Findings<'_>,
) {
    let mut own = BTreeMap::new();
    for (index, service) in services.iter().enumerate() {
        let trail = trail.item(index);
        let port = service.port.as_deref().unwrap_or_default();
        let id = format!("{owner}-{}-{port}", service.name);
        if let Some(place) = ids.get(&id) {
            let message = format!("gets the same id as the service at `{place}`; rename one of them");
            findings.problem(&trail, message);
        }
        own.insert(id, trail.to_string());
    }
    ids.append(&mut own);
}

fn one_provider(
    services: &[Service],
    trail: &Trail<'_>,
    first: &mut Option<(Provider, String)>,
    findings: &mut Findings<'_>,
) {
    for (index, service) in services.iter().enumerate() {
        let trail = trail.item(index);
        match first {
            Some((provider, place)) if *provider != service.provider => {
                let message = format!("`{place}` uses another catalogue; a group can use only one");
                findings.absent(&trail, &trail.field("provider"), message);
            }
            Some(_) => {}
            None => *first = Some((service.provider, trail.to_string())),
        }
    }
}

/// Validates the services of a group or of one task.
pub(super) fn list(
    context: &GroupContext<'_>,
    specs: Option<&[spec::Service]>,
    services: &[Service],
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let mut seen = BTreeMap::new();
    for (index, (spec, service)) in specs.into_iter().flatten().zip(services).enumerate() {
        let trail = trail.item(index);
        let named = service.task.as_deref().and_then(|name| context.group.task(name));
        let context = &GroupContext { task: context.task.or(named), ..*context };
        let port = service.port.as_deref().unwrap_or_default();
        if let Some(first) = seen.insert((service.name.as_str(), port), trail.to_string()) {
            let message = match port {
                "" => format!("service `{}` is already defined at `{first}`", service.name),
                port => {
                    format!("service `{}` with port `{port}` is already defined at `{first}`", service.name)
                }
            };
            findings.problem(&trail, message);
        }
        name(spec, service, &trail, findings);
        if let Some(port) = &service.port {
            label(context, port, &trail.field("port"), findings);
        }
        if spec.address.is_some() && service.address_mode != AddressMode::Auto {
            findings.problem(&trail.field("address"), "is only allowed with `address_mode: auto`");
        }
        address::of_service(context, service, &trail, findings);
        if let Some(address) = &spec.address {
            text::plain(address, &trail.field("address"), findings);
        }
        for (field, address) in &service.tagged_addresses {
            text::plain(address, &trail.field("tagged_addresses").field(field), findings);
        }
        only_consul(spec, service, &trail, findings);
        if let Some(identity) = &spec.identity {
            identity::of_service(identity, &trail.field("identity"), findings);
        }
        if let Some(written) = &spec.publish {
            published::of_service(context, (written, service), &trail.field("publish"), findings);
        }
        if let Some(task) = &spec.task {
            a_task(context, task, &trail.field("task"), findings);
        }
        let checks = trail.field("checks");
        text::unique(
            service.checks.iter().map(|check| Some(check.name.as_str())),
            "check",
            &checks,
            findings,
        );
        for (index, (spec, check)) in spec.checks.iter().flatten().zip(&service.checks).enumerate() {
            one_check(context, spec, check, service, &checks.item(index), findings);
        }
    }
}

/// Warns of fields that the built-in catalogue, like Nomad's, accepts without effect.
fn only_consul(spec: &spec::Service, service: &Service, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let written = [
        // Only Consul's logins use the token of a service.
        ("identity", service.identity.is_some()),
        ("cluster", spec.cluster.as_ref().is_some_and(|cluster| cluster != ConsulAccess::DEFAULT_CLUSTER)),
        ("tagged_addresses", !service.tagged_addresses.is_empty()),
        ("enable_tag_override", service.enable_tag_override),
        ("weights", service.weights != Weights::default()),
    ];
    for (name, _) in
        written.into_iter().filter(|(_, written)| *written && service.provider == Provider::Nomad)
    {
        findings.warning(&trail.field(name), "has an effect only with `provider: consul`");
    }
}

/// Validates the name after interpolation: a DNS label. A name with variables that resolve at run time can't
/// be validated here.
fn name(spec: &spec::Service, service: &Service, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let name = service.name.as_str();
    if name.contains("${") {
        return;
    }
    if NameKind::Service.accepts(name) {
        return;
    }
    let rule = SERVICE_RULE;
    match &spec.name {
        Some(_) => findings
            .problem(&trail.field("name"), format!("the service's name {rule}; it evaluates to `{name}`")),
        None => findings
            .problem(trail, format!("the default name `{name}` is not valid, it {rule}; write `name`")),
    }
}

/// Validates a port: a label of the group's ports or of the task's, or a number.
fn label(context: &GroupContext<'_>, port: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let of_group = context.group.network.iter().flat_map(|network| network.ports.keys());
    let of_task = context.task.iter().flat_map(|task| task.ports.keys());
    let labels = of_group.chain(of_task).map(String::as_str);
    if port.contains("${") || labels.clone().any(|label| label == port) {
        return;
    }
    if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            findings.problem(trail, format!("`{port}` is not a port; ports are 1 to 65535"));
        }
        return;
    }
    let owner = context.group.tasks.iter().find(|task| task.ports.contains_key(port));
    let message = || match owner {
        Some(owner) if context.task.is_none() => {
            let owner = &owner.name;
            format!("the port `{port}` belongs to task `{owner}` alone; write `task: {owner}` in the service")
        }
        Some(owner) => format!("the port `{port}` belongs to task `{}` alone", owner.name),
        None => no_such("port", port, labels),
    };
    let network = context.trail.field("network");
    findings.absent_with(&network.field("ports"), trail, message);
}

fn one_check(
    context: &GroupContext<'_>,
    spec: &spec::Check,
    check: &Check,
    service: &Service,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if let Some(port) = &check.port {
        label(context, port, &trail.field("port"), findings);
    } else if service.port.is_none() && check.kind.has_address() {
        findings.absent(trail, trail, "needs a port: its own or the service's");
    }
    address::of_check(context, (check, service), trail, findings);
    for (written, length, name) in
        [(spec.interval, check.interval, "interval"), (spec.timeout, check.timeout, "timeout")]
    {
        if written.is_some() && length < CHECK_TIME_MIN {
            findings.problem(
                &trail.field(name),
                format!("must be at least {CHECK_TIME_MIN}, found {}", Span(length)),
            );
        }
    }
    fields_of_kind(spec, trail, findings);
    task_of_check(context, spec, service, trail, findings);
    thresholds(check, trail, findings);
    restart(spec, check, service, trail, findings);
    for (name, written) in [("notes", &spec.notes), ("tls_server_name", &spec.tls_server_name)] {
        if let Some(text) = written {
            text::plain(text, &trail.field(name), findings);
        }
    }
    // Rules for types don't apply if the type is unreadable.
    match (&check.kind, spec.kind) {
        (CheckKind::Http { .. }, Some(_)) => http(spec, check, trail, findings),
        (CheckKind::Grpc { tls, .. }, _) => tls_only(spec, *tls, "grpc_use_tls: true", trail, findings),
        (CheckKind::Script { task, .. }, _) => script(context, spec, task, trail, findings),
        (CheckKind::Http { .. }, None) | (CheckKind::Tcp, _) => {}
    }
}

/// Reports fields that don't apply to the check's type. As in Nomad, most have no effect; empty ones are written by Nomad
/// itself.
fn fields_of_kind(spec: &spec::Check, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    use CheckType::{Grpc, Http, Script, Tcp};
    let Some(kind) = spec.kind else { return };
    let counts = |number: Option<u32>| number.is_some_and(|number| number > 0);
    let idle: [(&str, bool, &[CheckType]); 13] = [
        ("path", spec.path.is_some(), &[Http]),
        ("method", spec.method.is_some(), &[Http]),
        ("protocol", spec.protocol.is_some(), &[Http]),
        ("header", spec.header.is_some(), &[Http]),
        ("body", spec.body.is_some(), &[Http]),
        ("grpc_service", spec.grpc_service.is_some(), &[Grpc]),
        ("grpc_use_tls", spec.grpc_use_tls == Some(true), &[Grpc]),
        ("tls_skip_verify", spec.tls_skip_verify == Some(true), &[Http, Grpc]),
        ("tls_server_name", spec.tls_server_name.is_some(), &[Http, Grpc]),
        ("command", spec.command.is_some(), &[Script]),
        ("args", spec.args.is_some(), &[Script]),
        ("port", spec.port.is_some(), &[Http, Tcp, Grpc]),
        ("address_mode", spec.address_mode.is_some(), &[Http, Tcp, Grpc]),
    ];
    let refused: [(&str, bool, &[CheckType]); 3] = [
        ("success_before_passing", counts(spec.success_before_passing), &[Http, Tcp, Grpc]),
        ("failures_before_critical", counts(spec.failures_before_critical), &[Http, Tcp, Grpc]),
        ("failures_before_warning", counts(spec.failures_before_warning), &[Http, Tcp, Grpc]),
    ];
    let listed = |kinds: &[CheckType]| {
        let kinds: Vec<String> = kinds.iter().map(|kind| format!("`type: {}`", kind.as_str())).collect();
        kinds.join(", ")
    };
    let is_out_of_place =
        |(_, written, kinds): &(&str, bool, &[CheckType])| *written && !kinds.contains(&kind);
    for (name, _, kinds) in idle.into_iter().filter(is_out_of_place) {
        findings.warning(&trail.field(name), format!("has an effect only with {}", listed(kinds)));
    }
    for (name, _, kinds) in refused.into_iter().filter(is_out_of_place) {
        findings.problem(&trail.field(name), format!("is only allowed with {}", listed(kinds)));
    }
}

/// Validates the task of a check that runs no command. Nomad writes it into all checks of a task's services.
fn task_of_check(
    context: &GroupContext<'_>,
    spec: &spec::Check,
    service: &Service,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(task) = spec.task.as_deref().filter(|task| !task.is_empty()) else { return };
    let is_of_group = trail.to_string().starts_with(&context.trail.field("services").to_string());
    if spec.kind == Some(CheckType::Script) || !is_of_group || service.task.as_deref() == Some(task) {
        return;
    }
    let trail = trail.field("task");
    a_task(context, task, &trail, findings);
    if spec.check_restart.is_some() {
        findings.warning(&trail, "has an effect only with `type: script`; write `task` in the service");
    }
}

/// Requires that a check warns before it fails.
fn thresholds(check: &Check, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let warning = check.thresholds.failures_before_warning;
    let critical = check.thresholds.failures_before_critical.max(1);
    if warning > critical {
        let message = format!("must not be above `failures_before_critical`, which is {critical}");
        findings.problem(&trail.field("failures_before_warning"), message);
    }
}

/// As in Nomad, a result that `on_update` ignores must not restart anything.
fn restart(
    spec: &spec::Check,
    check: &Check,
    service: &Service,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(restart) = &check.check_restart else { return };
    let message = match check.on_update {
        OnUpdate::Ignore => "a check with `on_update: ignore` can't restart anything",
        OnUpdate::IgnoreWarnings if !restart.ignore_warnings => {
            "with `on_update: ignore_warnings` write `ignore_warnings: true` here too"
        }
        OnUpdate::IgnoreWarnings | OnUpdate::RequireHealthy => return,
    };
    match &spec.check_restart {
        Some(_) => findings.problem(&trail.field("check_restart"), message),
        None => findings.problem(trail, format!("`check_restart` of service `{}`: {message}", service.name)),
    }
}

/// Validates a command and the task that it runs in.
fn script(
    context: &GroupContext<'_>,
    spec: &spec::Check,
    task: &str,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    match &spec.command {
        None => findings.absent(trail, trail, "`command` is missing"),
        Some(command) if command.is_empty() => {
            findings.problem(&trail.field("command"), "must not be empty");
        }
        Some(_) => {}
    }
    if task.is_empty() {
        findings.absent(trail, trail, "`task` is missing: the task of the group in which the command runs");
    } else if spec.task.is_some() {
        a_task(context, task, &trail.field("task"), findings);
    }
    let driver = context.group.task(task).map(|task| task.driver.as_str()).unwrap_or_default();
    if context.drivers.get(driver).is_some_and(|rules| !rules.capabilities.exec) {
        let message = format!("the driver {driver} can't execute commands in a task; use `tcp` or `http`");
        findings.problem(&trail.field("type"), message);
    }
}

/// Requires a task of the group.
fn a_task(context: &GroupContext<'_>, name: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let tasks = || context.group.tasks.iter().map(|task| task.name.as_str());
    if !tasks().any(|task| task == name) {
        findings.absent_with(&context.trail.field("tasks"), trail, || no_such("task", name, tasks()));
    }
}

/// Reports fields that only apply to TLS.
fn tls_only(spec: &spec::Check, tls: bool, how: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let written = [
        ("tls_skip_verify", spec.tls_skip_verify == Some(true)),
        ("tls_server_name", spec.tls_server_name.is_some()),
    ];
    for (name, _) in written.into_iter().filter(|(_, written)| *written && !tls) {
        findings.warning(&trail.field(name), format!("has an effect only with `{how}`"));
    }
}

/// Returns whether a path is a whole URL.
fn is_absolute(path: &str) -> bool {
    path.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn http(spec: &spec::Check, check: &Check, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let CheckKind::Http { path, method, protocol, header, .. } = &check.kind else { return };
    match &spec.path {
        None => findings.absent(trail, trail, "`path` is missing"),
        Some(path) if is_absolute(path) => {
            findings.problem(&trail.field("path"), "write only the path of the URL, for instance /health");
        }
        Some(_) if path.contains(char::is_control) => {
            findings.problem(&trail.field("path"), "must not contain control characters");
        }
        Some(_) if path.contains('#') => {
            findings.warning(&trail.field("path"), "no request contains what follows `#`");
        }
        Some(_) => {}
    }
    if !METHODS.contains(&method.as_str()) && !method.contains("${") {
        let message = format!("`{method}` is not an HTTP method; the methods are {}", METHODS.join(", "));
        findings.problem(&trail.field("method"), message);
    }
    tls_only(spec, protocol == "https", "protocol: https", trail, findings);
    for (field, values) in header {
        let headers = trail.field("header");
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if field.is_empty() || !field.bytes().all(is_token) {
            findings.problem(
                &headers.field(field),
                "the name contains characters that HTTP forbids in header fields",
            );
        }
        if values.iter().any(|value| value.contains(['\r', '\n', '\0'])) {
            findings.problem(&headers.field(field), "must not contain line breaks");
        }
    }
}
