//! Addresses that may still be held by an agent that was killed, until it has ended.
//!
//! In: what takes the address. Out: its result, once the address is free or that was waited for long enough.

use std::{io, time::Duration};

use backon::{ConstantBuilder, Retryable as _};

/// How an address that is in use is waited for: 2 s.
const LET_GO: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(100)).with_max_times(20);

/// Takes an address by `bind`.
///
/// # Errors
/// When it can't be had, or is in use for longer than a process takes to end.
pub(crate) async fn when_free<T, F>(address: &str, bind: impl FnMut() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut is_told = false;
    let tell = |_: &io::Error, _| {
        if !std::mem::replace(&mut is_told, true) {
            tracing::info!(address, "waiting for an address that is in use");
        }
    };
    bind.retry(LET_GO).when(|error| error.kind() == io::ErrorKind::AddrInUse).notify(tell).await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_waited_for_as_long_as_a_process_takes_to_end() {
        let before = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = before.local_addr().unwrap().to_string();
        let bind = || TcpListener::bind(address.clone());
        let error = when_free(&address, bind).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let (taken, ()) = tokio::join!(when_free(&address, bind), async {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            drop(before);
        });
        taken.unwrap();
        let mut times = 0;
        let other = when_free("x", || {
            times += 1;
            std::future::ready(Err::<(), _>(io::ErrorKind::AddrNotAvailable.into()))
        });
        assert_eq!((other.await.unwrap_err().kind(), times), (io::ErrorKind::AddrNotAvailable, 1));
    }
}
