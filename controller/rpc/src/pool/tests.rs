//! Failing servers, under paused time.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    connect::accept,
    testing::{Lab, WAIT},
};

/// Checks that the call's future is `Send`.
fn goes_anywhere<T: Send>(call: T) -> T {
    call
}

/// A network of servers with these names.
#[derive(Default)]
struct Lan {
    servers: BTreeMap<String, Arc<Lab>>,
    /// Servers that refuse connections.
    down: Mutex<BTreeSet<String>>,
    /// Servers that accept connections but never answer.
    hangs: Mutex<BTreeSet<String>>,
    /// Servers that drop all packets.
    swallowed: Mutex<BTreeSet<String>>,
    /// Servers that accept connections and close them.
    cut: Mutex<BTreeSet<String>>,
    /// The dialled servers, in order.
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
        if self.swallowed.lock().unwrap().contains(&name) {
            std::future::pending::<()>().await;
        }
        let (mut ours, theirs) = tokio::io::duplex(64 * 1024);
        if self.cut.lock().unwrap().contains(&name) {
            return Ok(Box::new(ours));
        }
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

/// A pool of the servers a, b and c, and their shuffled order.
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

impl Pool<Lab, Lan> {
    async fn name(&self) -> Result<String, CallError> {
        goes_anywhere(self.query("Lab.Name", Duration::ZERO, |_| ())).await?.decode()
    }

    fn dialled(&self) -> usize {
        self.network.dialled.lock().unwrap().len()
    }

    fn link(&self, name: &str) -> Option<Arc<Link>> {
        self.known().links.get(&name.parse::<Address>().unwrap()).cloned()
    }

    fn fail(&self, name: &str, why: Option<&str>) {
        *self.network.servers[name].fails.lock().unwrap() = why.map(str::to_owned);
    }
}

#[tokio::test(start_paused = true)]
async fn first_server_is_used_over_one_connection() {
    let (pool, order) = pool();
    let mut successes = pool.successes();
    let calls = futures_util::future::join_all((0..20).map(|_| pool.name())).await;
    assert!(calls.into_iter().all(|name| name.unwrap() == order[0]));
    assert_eq!(*pool.network.dialled.lock().unwrap(), [order[0].clone()]);
    assert!(successes.has_changed().unwrap());
    successes.mark_unchanged();
    // The server calls us over the same connection.
    let reply = pool.write("Lab.Back", &()).await.unwrap();
    assert_eq!(reply.decode::<String>().unwrap(), "node");
}

#[tokio::test(start_paused = true)]
async fn next_server_is_tried_if_unreachable() {
    let (pool, order) = pool();
    pool.network.down.lock().unwrap().insert(order[0].clone());
    assert_eq!(pool.name().await.unwrap(), order[1]);
    assert_eq!(super::tests::order(&pool), [&order[1][..], &order[2], &order[0]]);
    // Nothing was sent, so a write may go to the next server too.
    pool.network.down.lock().unwrap().insert(order[1].clone());
    pool.known().links.clear();
    assert_eq!(pool.write("Lab.Name", &()).await.unwrap().decode::<String>().unwrap(), order[2]);
}

#[tokio::test(start_paused = true)]
async fn missing_leader_is_retried_within_the_hold_time() {
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
    // A leader is elected after two seconds.
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
    // All servers would return the same error: the first stays first.
    assert_eq!(super::tests::order(&pool), order);
}

#[tokio::test(start_paused = true)]
async fn lost_reads_are_repeated_and_writes_are_not() {
    let (pool, order) = pool();
    // Longer than the hold time, which starts when the call fails.
    let cut = async {
        sleep(Duration::from_secs(100)).await;
        let link = Arc::clone(pool.known().links.values().next().unwrap());
        link.mux().await.close();
    };
    // The second server is asked with the rest of the time, and fails for another reason.
    pool.fail(&order[1], Some("enough"));
    let asked = Mutex::new(Vec::new());
    let request = |left: Duration| asked.lock().unwrap().push(left.as_secs());
    let (answer, ()) = tokio::join!(pool.query("Lab.Hang", Duration::from_secs(200), request), cut);
    assert_eq!(answer.unwrap_err().to_string(), "enough");
    assert_eq!(*asked.lock().unwrap(), [200, 99]);

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
    let (began, left) = (Instant::now(), pool.left());
    let error = pool.name().await.unwrap_err();
    assert!(matches!(error, CallError::Late(_)), "{error}");
    assert_eq!(began.elapsed(), GRACE);
    assert!(left.has_changed().unwrap(), "other calls to it are notified");
    assert_eq!(pool.name().await.unwrap(), order[1]);
    // Its connection was closed, so other calls there end too.
    let link = Arc::clone(&pool.known().links[&order[0].parse::<Address>().unwrap()]);
    link.mux().await.ended().await;
}

/// Every server would give the same answer.
#[tokio::test(start_paused = true)]
async fn too_large_answer_keeps_the_server() {
    let (pool, order) = pool();
    let left = pool.left();
    for _ in 0..3 {
        let error = pool.query("Lab.Huge", Duration::ZERO, |_| ()).await.unwrap_err();
        assert!(matches!(error, CallError::Message(MessageError::Limit(_))), "{error}");
    }
    assert_eq!(super::tests::order(&pool), order);
    assert_eq!(pool.name().await.unwrap(), order[0]);
    assert!(!left.has_changed().unwrap());
}

/// Servers treat a blocking time of zero as 300 s, so a retry at the end of the time requests a short one instead.
#[tokio::test(start_paused = true)]
async fn last_query_try_requests_some_time() {
    let (pool, order) = pool();
    let fail = |why| order.iter().for_each(|name| pool.fail(name, why));
    fail(Some("No cluster leader"));
    let began = Instant::now();
    let block = Duration::from_secs(60);
    let asked = Mutex::new(Vec::new());
    let request = |left: Duration| {
        asked.lock().unwrap().push(left);
        u64::try_from(left.as_millis()).unwrap()
    };
    let elected = async {
        sleep(block + HOLD).await;
        fail(None);
    };
    let (answer, ()) = tokio::join!(pool.query("Lab.Block", block, request), elected);
    answer.unwrap();
    assert!(began.elapsed() < block + HOLD + Duration::from_secs(1), "{:?}", began.elapsed());
    assert!(asked.lock().unwrap().iter().all(|left| !left.is_zero()));
    assert_eq!(asked.lock().unwrap().last(), Some(&BLOCK_MIN));
    // A query that does not block keeps zero.
    pool.query("Lab.Echo", Duration::ZERO, |left| assert_eq!(left, Duration::ZERO)).await.unwrap();
}

/// A heartbeat to a hanging server times out, and the next one goes to another server, so the node is not marked down.
#[tokio::test(start_paused = true)]
async fn timed_call_leaves_a_hanging_server() {
    let within = Duration::from_secs(8);
    for is_write in [true, false] {
        let (pool, order) = pool();
        pool.network.hangs.lock().unwrap().insert(order[0].clone());
        let heartbeat = async || match is_write {
            true => goes_anywhere(pool.write_within("Lab.Name", &(), within)).await,
            false => pool.query_within("Lab.Name", Duration::ZERO, |_| (), within).await,
        };
        let began = Instant::now();
        let error = heartbeat().await.unwrap_err();
        assert!(matches!(error, CallError::Late(_)), "{error}");
        assert_eq!(began.elapsed(), within);
        assert_eq!(heartbeat().await.unwrap().decode::<String>().unwrap(), order[1]);
        // The wait was short enough that the server may have been waiting for a leader: other calls keep the connection.
        assert!(pool.link(&order[0]).unwrap().mux().await.lost().is_none());
    }
    // Dialling and pauses count towards the limit.
    let (pool, order) = pool();
    pool.network.swallowed.lock().unwrap().insert(order[0].clone());
    order[1..].iter().for_each(|name| pool.fail(name, Some("No cluster leader")));
    for within in [Duration::from_secs(1), Duration::from_secs(4)] {
        let began = Instant::now();
        pool.write_within("Lab.Name", &(), within).await.unwrap_err();
        assert_eq!(began.elapsed(), within);
    }
}

/// Skipping a server that is powered off takes only the short dial timeout.
#[tokio::test(start_paused = true)]
async fn a_server_that_swallows_everything_is_passed_over() {
    let (pool, order) = pool();
    pool.network.swallowed.lock().unwrap().extend(order[..2].iter().cloned());
    let began = Instant::now();
    let answer = pool.write("Lab.Name", &()).await.unwrap();
    assert_eq!(answer.decode::<String>().unwrap(), order[2]);
    assert_eq!(began.elapsed(), 2 * DIAL_HASTILY);
    // The last server left gets the full dial timeout of stock clients.
    let (pool, order) = self::pool();
    pool.network.swallowed.lock().unwrap().extend(order);
    let began = Instant::now();
    let error = pool.write("Lab.Name", &()).await.unwrap_err();
    assert_eq!(began.elapsed(), 2 * DIAL_HASTILY + DIAL);
    assert!(matches!(error, CallError::Unreachable(_)), "{error}");
}

/// If no server is reachable, a call fails at once, however long it might have blocked; each server is dialled once.
#[tokio::test(start_paused = true)]
async fn unreachable_servers_fail_the_call_at_once() {
    let (pool, order) = pool();
    pool.network.down.lock().unwrap().extend(order);
    let began = Instant::now();
    let error = pool.query("Lab.Hang", BLOCK_MAX, |_| ()).await.unwrap_err();
    assert!(matches!(&error, CallError::Unreachable(why) if matches!(**why, DialError::Connect { .. })));
    assert_eq!((began.elapsed(), pool.dialled()), (Duration::ZERO, 3));
}

/// Servers that accept and then close, such as TLS servers called without TLS, are dialled until the hold time ends.
#[tokio::test(start_paused = true)]
async fn repeatedly_cut_connection_fails_the_call() {
    let (pool, order) = pool();
    pool.network.cut.lock().unwrap().extend(order);
    let began = Instant::now();
    let error = pool.query("Lab.Hang", BLOCK_MAX, |_| ()).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    let took = began.elapsed();
    assert!(took >= HOLD && took < HOLD + HOLD / TRIES_IN_HOLD, "{took:?}");
    assert!(pool.dialled() < 80, "{} times dialled", pool.dialled());
}

/// However many queries block, other calls find a free stream.
#[tokio::test(start_paused = true)]
async fn blocking_queries_leave_room_for_others() {
    let (pool, order) = pool();
    let minute = Duration::from_secs(60);
    let block = || pool.query("Lab.Hang", minute, |_| ());
    let blocked = futures_util::future::join_all((0..2 * LONG).map(|_| block()));
    let others = async {
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        pool.write("Lab.Name", &()).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let lab = &pool.network.servers[&order[0]];
        assert_eq!(lab.begun.load(std::sync::atomic::Ordering::SeqCst), LONG + 1);
        let within = Duration::from_secs(10);
        let error = pool.query_within("Lab.Hang", minute, |_| (), within).await.unwrap_err();
        assert!(matches!(error, CallError::NoRoom(waited) if waited == within), "{error}");
        assert_eq!(began.elapsed(), within);
    };
    tokio::select! {
        _ = blocked => panic!("the calls must not end"),
        () = others => {}
    }
}

/// A terminal session uses a connection that the pool no longer calls over. The connection closes after the session.
#[tokio::test(start_paused = true)]
async fn a_connection_over_which_a_server_calls_is_kept() {
    let (pool, order) = pool();
    pool.write("Lab.Hold", &()).await.unwrap();
    pool.known().servers.failed(&order[0].parse().unwrap());
    sleep(link::IDLE).await;
    pool.close_unused();
    assert!(pool.link(&order[0]).is_some());
    pool.set_servers(vec![order[1].parse().unwrap()]);
    let mut session = pool.network.servers[&order[0]].held.lock().unwrap().pop().unwrap();
    session.send("x").await.unwrap();
    assert!(session.receive::<framed::StreamFrame>().await.unwrap().is_some());
    drop(session);
    sleep(Duration::from_secs(1)).await;
    pool.close_unused();
    assert!(pool.link(&order[0]).is_none());
}

#[tokio::test(start_paused = true)]
async fn rebalance_uses_the_first_order_that_answers() {
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
    sleep(link::IDLE).await;
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
    assert_eq!(pool.name().await.unwrap(), order[2], "an empty list is ignored");
}

#[tokio::test(start_paused = true)]
async fn empty_pool_does_nothing() {
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

#[tokio::test(start_paused = true)]
async fn streaming_calls_go_on_to_the_next_server() {
    let (pool, order) = pool();
    pool.network.down.lock().unwrap().insert(order[0].clone());
    pool.network.swallowed.lock().unwrap().insert(order[1].clone());
    let began = Instant::now();
    goes_anywhere(pool.stream("Lab.Repeat", &1)).await.unwrap();
    assert_eq!(began.elapsed(), DIAL_HASTILY);
    assert_eq!(super::tests::order(&pool)[0], order[2]);
    // A server that does not accept the call moves to the end too, but the call may have begun, so it is not retried.
    pool.network.hangs.lock().unwrap().insert(order[2].clone());
    let error = pool.stream("Lab.Repeat", &1).await.map(drop).unwrap_err();
    assert!(matches!(error, CallError::Late(GRACE)), "{error}");
    assert_eq!(super::tests::order(&pool), order);
    // Every server would refuse the method.
    pool.network.down.lock().unwrap().clear();
    let error = pool.stream("Lab.Nothing", &1).await.map(drop).unwrap_err();
    assert!(matches!(error, CallError::Server(_)), "{error}");
    assert_eq!(super::tests::order(&pool), order);
    pool.network.down.lock().unwrap().extend(order);
    pool.network.swallowed.lock().unwrap().clear();
    let error = pool.stream("Lab.Repeat", &1).await.map(drop).unwrap_err();
    assert!(matches!(error, CallError::Unreachable(_)), "{error}");
}
