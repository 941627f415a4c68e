//! Binding addresses that a killed agent may still hold until it has ended.
//!
//! In: a function that binds. Out: its result, after retries while the address is in use.

use std::{io, time::Duration};

use backon::{ConstantBuilder, Retryable as _};

/// Retries for 2 s while the address is in use.
const LET_GO: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(100)).with_max_times(20);

///
/// The error of `bind`. An address in use is an error only after the retries, which last longer than a
/// process takes to end.
pub(crate) async fn when_free<T, F>(address: &str, bind: impl FnMut() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut is_logged = false;
    let log_retry = |_: &io::Error, _| {
        if !std::mem::replace(&mut is_logged, true) {
            tracing::info!(address, "waiting for an address that is in use");
        }
    };
    bind.retry(LET_GO).when(|error| error.kind() == io::ErrorKind::AddrInUse).notify(log_retry).await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn address_in_use_is_retried_until_the_timeout() {
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
