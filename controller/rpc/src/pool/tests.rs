//! Servers that fail, in time that does not pass.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    connect::accept,
    testing::{Lab, WAIT},
};

/// A network of servers with these names.
#[derive(Default)]
struct Lan {
    servers: BTreeMap<String, Arc<Lab>>,
    /// Nobody answers there.
    down: Mutex<BTreeSet<String>>,
    /// Somebody has accepted, and hangs.
    hangs: Mutex<BTreeSet<String>>,
    /// Who was dialled, in order.
    dialled: Mutex<Vec<String>>,
    kept: Mutex<Vec<tokio::io::DuplexStream>>,
}

impl Dial for Lan {
    async fn dial(&self, address: &Address, purpose: Purpose) -> Result<Box<dyn Io>, DialError> {
        let name = address.parts().0.to_owned();
        self.dialled.lock().unwrap().push(name.clone());
        if self.down.lock().unwrap().contains(&name) {
            let source = std::io::ErrorKind::ConnectionRefused.into();
            return Err(DialError::Connect { address: address.clone(), source });
        }
        let (mut ours, theirs) = tokio::io::duplex(64 * 1024);
        if self.hangs.lock().unwrap().contains(&name) {
            self.kept.lock().unwrap().push(theirs);
            return Ok(Box::new(ours));
        }
        let first = match purpose {
            Purpose::Streams => 6,
            Purpose::OneStream => 5,
        };
        tokio::io::AsyncWriteExt::write_u8(&mut ours, first).await.unwrap();
        let lab = Arc::clone(&self.servers[&name]);
        tokio::spawn(async move { accept(theirs, None, lab, "client".to_owned()).await });
        Ok(Box::new(ours))
    }
}

/// A pool of servers a, b and c, in an order that is told.
fn pool() -> (Pool<Lab, Lan>, Vec<String>) {
    let lab = |name| (name_of(name), Arc::new(Lab { name, ..Lab::default() }));
    let lan = Lan { servers: ["a", "b", "c"].map(lab).into(), ..Lan::default() };
    let servers = ["a", "b", "c"].map(|name| name.parse().unwrap()).into();
    let service = Arc::new(Lab { name: "node", ..Lab::default() });
    let pool = Pool::new(service, "global".to_owned(), servers, lan, Chance::of(3));
    let order = order(&pool);
    (pool, order)
}

fn name_of(name: &str) -> String {
    name.to_owned()
}

fn order(pool: &Pool<Lab, Lan>) -> Vec<String> {
    pool.servers().iter().map(|address| address.parts().0.to_owned()).collect()
}

impl Link {
    async fn mux(&self) -> Mux {
        let Dialled::Open(caller) = &*self.dialled.lock().await else { panic!("a connection") };
        caller.mux().clone()
    }
}

impl Pool<Lab, Lan> {
    async fn name(&self) -> Result<String, CallError> {
        self.query("Lab.Name", Duration::ZERO, |_| ()).await?.decode()
    }

    fn fail(&self, name: &str, why: Option<&str>) {
        *self.network.servers[name].fails.lock().unwrap() = why.map(str::to_owned);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_server_is_asked_over_one_connection() {
    let (pool, order) = pool();
    let mut successes = pool.successes();
    let calls = futures_util::future::join_all((0..20).map(|_| pool.name())).await;
    assert!(calls.into_iter().all(|name| name.unwrap() == order[0]));
    assert_eq!(*pool.network.dialled.lock().unwrap(), [order[0].clone()]);
    assert!(successes.has_changed().unwrap());
    successes.mark_unchanged();
    // And it calls us over the same one.
    let reply = pool.write("Lab.Back", &()).await.unwrap();
    assert_eq!(reply.decode::<String>().unwrap(), "node");
}

#[tokio::test(start_paused = true)]
async fn the_next_one_is_asked_where_nobody_answers() {
    let (pool, order) = pool();
    pool.network.down.lock().unwrap().insert(order[0].clone());
    assert_eq!(pool.name().await.unwrap(), order[1]);
    assert_eq!(super::tests::order(&pool), [&order[1][..], &order[2], &order[0]]);
    // Nothing was sent, so a change may go on to the next one too.
    pool.network.down.lock().unwrap().insert(order[1].clone());
    pool.known().links.clear();
    assert_eq!(pool.write("Lab.Name", &()).await.unwrap().decode::<String>().unwrap(), order[2]);
}

#[tokio::test(start_paused = true)]
async fn who_has_no_leader_is_asked_again_for_as_long_as_calls_are_held() {
    let (pool, order) = pool();
    for name in &order {
        pool.fail(name, Some("rpc error: No cluster leader"));
    }
    let began = Instant::now();
    let error = pool.write("Lab.Echo", &()).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: No cluster leader");
    let took = began.elapsed();
    assert!(took >= HOLD && took < HOLD + HOLD / TRIES_IN_HOLD, "{took:?}");
    let tries: usize = order
        .iter()
        .map(|name| pool.network.servers[name].begun.load(std::sync::atomic::Ordering::SeqCst))
        .sum();
    assert!((17..80).contains(&tries), "{tries} tries");
    // And they find one after two seconds.
    let elected = async {
        sleep(Duration::from_secs(2)).await;
        pool.fail(&order[1], None);
    };
    let (answer, ()) = tokio::join!(pool.write("Lab.Echo", &7), elected);
    assert_eq!(answer.unwrap().decode::<u8>().unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn other_errors_go_to_the_caller_at_once() {
    let (pool, order) = pool();
    for name in &order {
        pool.fail(name, Some("Permission denied"));
    }
    let began = Instant::now();
    let error = pool.query("Lab.Echo", WAIT, |_| ()).await.unwrap_err();
    assert!(matches!(&error, CallError::Server(error) if error.kind() == ErrorKind::PermissionDenied));
    assert!(began.elapsed() < Duration::from_millis(100));
    assert_eq!(super::tests::order(&pool)[2], order[0]);
}

#[tokio::test(start_paused = true)]
async fn reads_are_repeated_when_a_connection_is_lost_and_changes_are_not() {
    let (pool, order) = pool();
    let cut = async {
        sleep(Duration::from_secs(1)).await;
        let link = Arc::clone(pool.known().links.values().next().unwrap());
        link.mux().await.close();
    };
    // Asks a second server for what is left of the time, which fails for another reason.
    pool.fail(&order[1], Some("enough"));
    let asked = Mutex::new(Vec::new());
    let request = |left: Duration| asked.lock().unwrap().push(left.as_secs());
    let (answer, ()) = tokio::join!(pool.query("Lab.Hang", Duration::from_secs(60), request), cut);
    assert_eq!(answer.unwrap_err().to_string(), "enough");
    assert_eq!(*asked.lock().unwrap(), [60, 58]);

    let (pool, _) = self::pool();
    let cut = async {
        sleep(Duration::from_secs(1)).await;
        let link = Arc::clone(pool.known().links.values().next().unwrap());
        link.mux().await.close();
    };
    let (answer, ()) = tokio::join!(pool.write("Lab.Hang", &()), cut);
    assert!(matches!(answer.unwrap_err(), CallError::Lost(_)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_left() {
    let (pool, order) = pool();
    pool.network.hangs.lock().unwrap().insert(order[0].clone());
    let began = Instant::now();
    let error = pool.name().await.unwrap_err();
    assert!(matches!(error, CallError::Late(_)), "{error}");
    assert_eq!(began.elapsed(), GRACE);
    assert_eq!(pool.name().await.unwrap(), order[1]);
    // Its connection was closed, so whoever still asks it hears so.
    let link = Arc::clone(&pool.known().links[&order[0].parse::<Address>().unwrap()]);
    link.mux().await.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_rebalance_takes_the_first_order_that_answers() {
    let (pool, order) = pool();
    for name in &order[1..] {
        pool.network.down.lock().unwrap().insert(name.clone());
    }
    pool.network.down.lock().unwrap().remove(&order[2]);
    pool.network.down.lock().unwrap().insert(order[0].clone());
    pool.rebalance().await;
    assert_eq!(super::tests::order(&pool)[0], order[2], "the only one that answers");
    // Unused connections are closed after a while.
    pool.network.down.lock().unwrap().clear();
    assert_eq!(pool.name().await.unwrap(), order[2]);
    pool.known().servers.failed(&order[2].parse().unwrap());
    pool.name().await.unwrap();
    assert!(pool.known().links.len() > 1);
    sleep(IDLE).await;
    pool.close_unused();
    assert!(pool.known().links.len() <= 1);
}

#[tokio::test(start_paused = true)]
async fn new_servers_take_the_place_of_old_ones() {
    let (pool, order) = pool();
    assert_eq!(pool.name().await.unwrap(), order[0]);
    pool.set_servers(vec![order[2].parse().unwrap()]);
    assert_eq!(pool.name().await.unwrap(), order[2]);
    assert!(!pool.known().links.contains_key(&order[0].parse::<Address>().unwrap()));
    pool.set_servers(Vec::new());
    assert_eq!(pool.name().await.unwrap(), order[2], "none at all are no news");
}

#[tokio::test(start_paused = true)]
async fn without_servers_nothing_is_done() {
    let pool =
        Pool::new(Arc::new(Lab::default()), "global".to_owned(), Vec::new(), Lan::default(), Chance::of(1));
    let error = pool.name().await.unwrap_err();
    assert_eq!(error.to_string(), "reach a server: no servers are known");
}

#[tokio::test(start_paused = true)]
async fn streaming_calls_have_a_connection_to_themselves() {
    let (pool, order) = pool();
    let mut stream = pool.stream("Lab.Repeat", &1).await.unwrap();
    stream.send("x").await.unwrap();
    assert!(stream.receive::<framed::StreamFrame>().await.unwrap().is_some());
    assert_eq!(*pool.network.dialled.lock().unwrap(), [order[0].clone()]);
    assert!(pool.known().links.is_empty());
}
