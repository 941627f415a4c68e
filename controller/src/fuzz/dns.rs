//! DNS queries. The first byte selects the transport.

use std::sync::Arc;

use domain::base::{Message, iana::Rcode, opt::AllOptData};
use herdlet_agent::publish::ReadModel;
use herdlet_api::dns::{Over, Zone, answer};
use herdlet_api_types::service::Registration;
use herdlet_manifest::fixture::{alloc_view, job, registration};
use herdlet_plan::turn::View;
use herdlet_runtime::{CommitIndex, Gate, Publisher as _};
use herdlet_services::catalog::{BuiltIn, ServiceOwner};

/// For any query, the answer can be parsed completely, fits the transport, and repeats the question.
pub(super) fn feed(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let (over, room) = match kind % 3 {
        0 => (Over::Loopback, 1_232),
        1 => (Over::Tcp, 65_535),
        _ => (Over::Udp, 1_232.min(3 * data.len())),
    };
    let Some(answer) = answer(data, over, &zone()) else { return };
    assert!(answer.len() <= room, "{} bytes", answer.len());
    let (query, answer) = (Message::from_octets(data).unwrap(), Message::from_octets(&answer).unwrap());
    assert!(answer.header().qr());
    assert_eq!(answer.header().id(), query.header().id());
    if answer.header().rcode() == Rcode::NOERROR && answer.opt().is_none_or(|opt| opt.version() == 0) {
        let (asked, answered) = (query.first_question(), answer.first_question());
        assert_eq!(asked.map(|one| one.to_string()), answered.map(|one| one.to_string()));
    }
    assert!(answer.iter().all(|record| record.is_ok()));
    let options = answer.opt().map(|opt| opt.opt().iter::<AllOptData<_, _>>().count());
    assert!(options.is_none_or(|options| options == 0));
}

/// A service with many instances, and one with an instance whose address is a name.
fn zone() -> Zone {
    let (web, model, catalog) = (job("web", "g", "t"), Arc::new(ReadModel::default()), BuiltIn::default());
    let views: Vec<_> = (0..64).map(|seed| alloc_view(&web, 0, seed)).collect();
    for (seed, view) in views.iter().enumerate() {
        let (name, address) = match seed {
            0 => ("db", "db.example.org".to_owned()),
            seed if seed % 2 == 0 => ("web", format!("192.0.2.{seed}")),
            seed => ("web", format!("2001:db8::{seed:x}")),
        };
        let owner = ServiceOwner { alloc: view.spec.id, task: None };
        let one = registration(view, name, &format!("s{seed}"));
        catalog.up(&owner, vec![Registration { address, ..one }]);
    }
    let views = views.into_iter().map(|view| View::Alloc(view.into())).collect();
    model.publisher().offer(CommitIndex(1), views);
    Zone { model, catalog: Arc::new(catalog), restored: Gate::opened_before() }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for name in [
        "web.service.herdlet",
        "A.dB.default.Service.HERDLET",
        "c0000207.addr.herdlet",
        "herdlet",
        "example.org",
    ] {
        for (over, kind) in [(0, 1_u16), (1, 28), (0, 33), (0, 6), (1, 255), (0, 65_280), (2, 255), (2, 6)] {
            let mut query = vec![over, 7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
            for label in name.split('.') {
                query.push(u8::try_from(label.len()).unwrap());
                query.extend(label.as_bytes());
            }
            query.push(0);
            query.extend(kind.to_be_bytes());
            query.extend([0, 1]);
            // An OPT record with a payload size of 4096 bytes.
            query.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
            seeds.push(query);
        }
    }
    seeds
}
