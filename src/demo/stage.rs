//! Everything that a demo has running or has made, to be removed at the end however far it came.

use tokio::task::JoinSet;

use super::broker::Broker;
use super::consumer::Consumer;
use super::database::Database;
use super::error::Error;
use super::folder::Folder;
use super::relay::Relay;
use super::screen::Screen;
use super::server::Server;
use crate::terminal::Colour;

/// It is filled from the top, and cleared from the bottom.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) folder: Option<Folder>,
    pub(super) server: Option<Server>,
    pub(super) database: Option<Database>,
    pub(super) broker: Option<Broker>,
    pub(super) consumer: Option<Consumer>,
    pub(super) writer: JoinSet<Result<(), Error>>,
    pub(super) relay: Option<Relay>,
}

impl Stage {
    /// Ends and removes everything; what is to be kept is told.
    ///
    /// # Errors
    /// The first thing that could not be removed. The others are.
    pub(super) async fn clear(mut self, keep: bool, screen: &mut Screen) -> Result<(), Error> {
        if let Some(relay) = self.relay.take() {
            relay.kill().await;
        }
        self.writer.shutdown().await;
        if let Some(consumer) = self.consumer.take() {
            // It is still there only where something else has gone wrong.
            let _ = consumer.finish().await;
        }
        if keep {
            return self.leave(screen).await;
        }
        let mut outcomes = Vec::new();
        if let Some(broker) = self.broker.take() {
            outcomes.push(broker.remove().await);
        }
        match (self.server.take(), self.database.take()) {
            // What was made in a private server goes with it.
            (Some(server), _) => server.stop(false).await,
            (None, Some(database)) => outcomes.push(database.remove().await),
            (None, None) => {}
        }
        if let Some(folder) = self.folder.take() {
            let path = folder.path().to_owned();
            outcomes.push(folder.remove().await.map_err(|error| Error::failed(path.display(), error)));
        }
        outcomes.into_iter().collect()
    }

    async fn leave(self, screen: &mut Screen) -> Result<(), Error> {
        if let Some(broker) = self.broker.as_ref().filter(|broker| broker.is_own()) {
            screen.say(Some(Colour::Grey), format_args!("kept: the topic {}", broker.topic()));
        }
        let Some(folder) = self.folder else { return Ok(()) };
        if let Some(server) = self.server {
            server.stop(true).await;
            let path = folder.keep().map_err(|error| Error::failed("the demo's folder", error))?;
            let path = path.display();
            screen.say(Some(Colour::Grey), format_args!("kept: {path}, with PostgreSQL's data in postgres/data"));
            return Ok(());
        }
        if let Some(database) = self.database {
            database.keep().await?;
            let name = database.name();
            screen.say(Some(Colour::Grey), format_args!("kept: the schema, slot and publication {name}"));
        }
        folder.remove().await.map_err(|error| Error::failed("the demo's folder", error))
    }
}
