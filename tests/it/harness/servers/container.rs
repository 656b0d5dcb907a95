//! A server in a container.

use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{KillContainerOptionsBuilder, StartContainerOptions};
use futures_util::future::{BoxFuture, FutureExt};
use testcontainers::core::IntoContainerPort;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};

use super::machine::{Machine, Recipe, Signal};
use super::session::session;
use super::wait::until;

/// A container with a fixed port; removed with its data when it is dropped.
pub(super) struct Container {
    container: ContainerAsync<GenericImage>,
    engine: Docker,
}

/// Whether a container engine can be reached.
pub(super) async fn engine_answers() -> bool {
    let ping = async { docker_client_instance().await.ok()?.ping().await.ok() };
    tokio::time::timeout(Duration::from_secs(2), ping).await.ok().flatten().is_some()
}

impl Container {
    pub(super) async fn boot(recipe: Recipe) -> Self {
        let (name, tag) = recipe.image;
        let request = GenericImage::new(name.to_owned(), tag.clone())
            .with_cmd(recipe.arguments)
            .with_mapped_port(recipe.port, recipe.port.tcp())
            .with_label("outboxd.test.session", session().id());
        let request =
            recipe.variables.into_iter().fold(request, |request, (name, value)| request.with_env_var(name, value));
        let container = request.start().await.unwrap_or_else(|error| panic!("container of {name}:{tag}: {error}"));
        Self { container, engine: docker_client_instance().await.unwrap() }
    }

    async fn send(&self, signal: &str) {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        self.engine.kill_container(self.container.id(), Some(options)).await.unwrap();
    }
}

impl Machine for Container {
    fn start(&self) -> BoxFuture<'_, ()> {
        async { self.engine.start_container(self.container.id(), None::<StartContainerOptions>).await.unwrap() }.boxed()
    }

    fn signal(&self, signal: Signal) -> BoxFuture<'_, ()> {
        self.send(match signal {
            Signal::Interrupt => "SIGINT",
            Signal::Quit => "SIGQUIT",
        })
        .boxed()
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        async {
            // The kernel kills all processes of a container whose first process dies.
            self.send("SIGKILL").await;
            until("the end of a killed container", Duration::from_secs(10), || async {
                if self.is_running().await { Err("it runs") } else { Ok(()) }
            })
            .await;
        }
        .boxed()
    }

    fn pause(&self) -> BoxFuture<'_, ()> {
        // The kernel cannot always freeze a busy process at once, and the engine gives up soon.
        async { until("the container to be paused", Duration::from_secs(20), || self.container.pause()).await }.boxed()
    }

    fn unpause(&self) -> BoxFuture<'_, ()> {
        async { self.container.unpause().await.unwrap() }.boxed()
    }

    fn is_running(&self) -> BoxFuture<'_, bool> {
        async { self.container.is_running().await.unwrap() }.boxed()
    }

    fn log(&self) -> BoxFuture<'_, String> {
        async {
            let mut log = self.container.stdout_to_vec().await.unwrap_or_default();
            log.extend(self.container.stderr_to_vec().await.unwrap_or_default());
            String::from_utf8_lossy(&log).into_owned()
        }
        .boxed()
    }
}
