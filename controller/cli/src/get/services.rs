//! Rows of services, with the results of their checks.
//!
//! In: the built-in catalogue, and names. Out: rows sorted by name. Services in Consul are only named.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::{
    JobKey,
    job::{Group, Provider},
    service::{CheckResult, CheckStatus, PublishedView, Registration, ServiceHealth, ServiceView},
    view::JobView,
};

use super::{
    Form,
    listing::{Cell, Document, Listing, Row},
};
use crate::{client::Client, failure::Failure, missing::Missing};

pub(super) async fn list(
    client: &Client,
    names: &[String],
    form: Form,
    missing: Missing,
) -> Result<Listing, Failure> {
    let (mut services, jobs) = tokio::try_join!(client.services(), client.jobs())?;
    let in_consul = names_in_consul(&jobs);
    let is_there = |name: &str| services.iter().any(|one| service_name(one) == name);
    if let Some(name) = missing.among(names, is_there) {
        let failure = Failure::new(format!("there is no service {name:?} in the built-in catalogue"));
        return Err(match in_consul.get(name) {
            Some(job) => failure
                .hint(format!("it is in Consul; for its checks, see: herdlet describe {}", job.argument())),
            None => failure.hint("list them: herdlet get services"),
        });
    }
    services.retain(|one| names.is_empty() || names.contains(&service_name(one)));
    services.sort_by_cached_key(service_name);
    let mut listing = service_listing(services, form);
    if names.is_empty() && !in_consul.is_empty() {
        let in_consul: Vec<_> = in_consul.into_keys().collect();
        listing.unlisted = Some(format!("not listed because they are in Consul: {}", in_consul.join(", ")));
    }
    Ok(listing)
}

/// Names of the services that jobs register in Consul, each with one such job.
fn names_in_consul(jobs: &[JobView]) -> BTreeMap<String, &JobKey> {
    let mut names = BTreeMap::new();
    for view in jobs.iter().filter(|view| !view.job.stop && !view.deleting) {
        for (_, service) in view.job.groups.iter().flat_map(Group::all_services) {
            if service.provider == Provider::Consul {
                names.insert(service_key(&view.key.namespace, &service.name), &view.key);
            }
        }
    }
    names
}

fn service_listing(services: Vec<ServiceView>, form: Form) -> Listing {
    let mut columns = vec!["SERVICE", "HEALTH", "PASSING", "ADDRESS", "PROVIDER", "ALLOC", "TASK", "TAGS"];
    let any_published = services.iter().any(|one| one.published.is_some());
    columns.extend(any_published.then_some("PUBLISHED"));
    columns.extend((form == Form::Wide).then_some("OUTPUT"));
    let mut listing = Listing::new(&columns);
    let mut instances: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for one in &services {
        let (passing, all) = instances.entry(service_name(one)).or_default();
        *passing += usize::from(one.health == ServiceHealth::Passing);
        *all += 1;
    }
    for one in services {
        let (key, name) = (one.registration.id.clone(), service_name(&one));
        let (passing, all) = instances.get(&name).copied().unwrap_or_default();
        let mut cells: Vec<Cell> = service_cells(&one, format!("{passing}/{all}")).map(Cell::Text).into();
        cells.extend(any_published.then(|| Cell::Text(published(&one))));
        cells.extend((form == Form::Wide).then(|| Cell::Text(check_output(&one.results))));
        listing.rows.push(Row { key, name, cells, document: Document::Service(Box::new(one)) });
    }
    listing
}

fn service_name(one: &ServiceView) -> String {
    service_key(&one.registration.job.namespace, &one.registration.name)
}

/// The name, with the namespace if it is not the default, as for jobs.
fn service_key(namespace: &Arc<str>, name: &str) -> String {
    JobKey { namespace: Arc::clone(namespace), id: name.into() }.to_string()
}

/// `passing`: the number of passing instances of the service, and of all.
fn service_cells(one: &ServiceView, passing: String) -> [String; 8] {
    let Registration { address, port, alloc, task, tags, .. } = &one.registration;
    let provider = match one.registration.provider {
        Provider::Nomad => "nomad",
        Provider::Consul => "consul",
    };
    [
        service_name(one),
        one.health.as_str().to_owned(),
        passing,
        if *port == 0 { address.clone() } else { format!("{address}:{port}") },
        provider.to_owned(),
        alloc.short(),
        task.clone().unwrap_or_else(|| "-".to_owned()),
        tags.join(","),
    ]
}

/// The published addresses, and whether they lead to this instance.
fn published(one: &ServiceView) -> String {
    match &one.published {
        None => String::new(),
        Some(PublishedView { problem: Some(_), .. }) => "no; see: herdlet explain".to_owned(),
        Some(view) if view.receives => view.addresses.join(","),
        Some(view) if view.addresses.is_empty() => String::new(),
        Some(view) => format!("not from {}", view.addresses.join(",")),
    }
}

/// The first line of a check's output: of a failing check if there is one, else of one with a
/// warning, else of the first.
fn check_output(results: &[CheckResult]) -> String {
    let with_status = |status| results.iter().find(|result| result.status == status);
    let chosen =
        with_status(CheckStatus::Failure).or_else(|| with_status(CheckStatus::Warning)).or(results.first());
    chosen.map_or_else(String::new, |result| {
        format!("{}: {}", result.check, result.output.lines().next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, UnixNanos, fixture};

    use super::*;
    use crate::table::Heading;

    fn instance(name: &str, seed: u8, health: ServiceHealth, results: &[(CheckStatus, &str)]) -> ServiceView {
        let result = |(status, output): &(CheckStatus, &str)| CheckResult {
            service: name.to_owned(),
            output: (*output).to_owned(),
            at: UnixNanos(1),
            ..fixture::check_result("alive", *status)
        };
        let registration = Registration {
            name: name.to_owned(),
            tags: vec!["a".to_owned(), "b".to_owned()],
            ..fixture::registration(&format!("{name}-{seed}"), AllocId::from_hash([seed; 16]))
        };
        ServiceView { registration, health, results: results.iter().map(result).collect(), published: None }
    }

    fn elsewhere(mut one: ServiceView) -> ServiceView {
        one.registration.job.namespace = "prod".into();
        one
    }

    #[test]
    fn services_are_listed_with_their_health() {
        let instances = || {
            vec![
                instance("db", 0x11, ServiceHealth::Passing, &[]),
                instance("web", 0x22, ServiceHealth::Passing, &[(CheckStatus::Success, "HTTP 200")]),
                instance(
                    "web",
                    0x33,
                    ServiceHealth::Critical,
                    &[(CheckStatus::Success, "fine"), (CheckStatus::Failure, "connection refused\nand more")],
                ),
                instance("web", 0x44, ServiceHealth::Pending, &[(CheckStatus::Pending, "")]),
                elsewhere(instance("web", 0x55, ServiceHealth::Passing, &[])),
            ]
        };
        assert_eq!(
            service_listing(instances(), Form::Table)
                .whole(super::super::ObjectKind::Services, Heading::Shown),
            "\
SERVICE   HEALTH    PASSING  ADDRESS         PROVIDER  ALLOC     TASK  TAGS
db        passing   1/1      127.0.0.1:8080  nomad     11111111  -     a,b
web       passing   1/3      127.0.0.1:8080  nomad     22222222  -     a,b
web       critical  1/3      127.0.0.1:8080  nomad     33333333  -     a,b
web       pending   1/3      127.0.0.1:8080  nomad     44444444  -     a,b
prod/web  passing   1/1      127.0.0.1:8080  nomad     55555555  -     a,b
"
        );
        let wide = service_listing(instances(), Form::Wide);
        let outputs: Vec<String> =
            wide.rows.iter().filter_map(|row| Some(row.cells.last()?.text())).collect();
        assert_eq!(outputs, ["", "alive: HTTP 200", "alive: connection refused", "alive: ", ""]);
    }
}
