//! Which topic and partition an event goes to, and which of the core's lanes that is.

use std::collections::HashMap;

use super::core::Core;
use super::lane::LaneId;
use super::trouble::Disorder;
use crate::kafka::partition::partition_of;
use crate::kafka::topics::{Directory, Topic};
use crate::outbox::{Event, MappingError};

/// A topic in use.
#[derive(Debug)]
struct Route {
    name: String,
    topic: Topic,
    /// One for each partition, by number.
    lanes: Vec<LaneId>,
}

/// The partition of an event. One without a key still goes the same way each time that it is sent.
pub(super) fn partition(event: &Event, partitions: u32) -> Result<u32, MappingError> {
    if let Some(partition) = event.partition(partitions)? {
        return Ok(partition);
    }
    Ok(match event.key()? {
        Some(key) => partition_of(&key, partitions),
        None => partition_of(event.id(), partitions),
    })
}

/// A topic was created again with fewer partitions, so some of what is in the window has no partition any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shrunk {
    pub(super) topic: String,
    pub(super) before: usize,
    pub(super) now: u32,
}

/// The topics in use.
#[derive(Debug, Default)]
pub(super) struct Router {
    routes: Vec<Route>,
    by_name: HashMap<String, usize>,
    /// Topic and partition of each lane, by its index.
    of_lane: Vec<(usize, i32)>,
    name: String,
}

impl Router {
    /// Notes the name of the event's topic, for [`Router::here`].
    pub(super) fn name(&mut self, event: &Event) -> Result<(), MappingError> {
        event.topic(&mut self.name)
    }

    /// The topic that was named last.
    pub(super) fn here(&self) -> &str {
        &self.name
    }

    /// The topic, if it is in use.
    pub(super) fn find(&self, name: &str) -> Option<Topic> {
        self.by_name.get(name).and_then(|index| self.routes.get(*index)).map(|route| route.topic)
    }

    /// The lane of a partition.
    pub(super) fn lane(&self, topic: &str, partition: u32) -> Option<LaneId> {
        let route = self.by_name.get(topic).and_then(|index| self.routes.get(*index))?;
        route.lanes.get(partition as usize).copied()
    }

    /// All lanes of a topic.
    pub(super) fn lanes(&self, topic: &str) -> &[LaneId] {
        let route = self.by_name.get(topic).and_then(|index| self.routes.get(*index));
        route.map_or(&[], |route| &route.lanes)
    }

    /// Topic and partition of a lane.
    pub(super) fn target(&self, lane: LaneId) -> Option<(&str, i32)> {
        let (route, partition) = self.of_lane.get(lane.index())?;
        Some((self.routes.get(*route)?.name.as_str(), *partition))
    }

    /// Takes over what is newly known: more partitions, other limits.
    pub(super) fn refresh<E>(&mut self, directory: &Directory, core: &mut Core<E>) -> Result<Option<Shrunk>, Disorder> {
        for index in 0..self.routes.len() {
            let Some(route) = self.routes.get_mut(index) else { continue };
            let Some(topic) = directory.get(&route.name) else { continue };
            route.topic = topic;
            let before = route.lanes.len();
            if (topic.partitions as usize) < before {
                return Ok(Some(Shrunk { topic: route.name.clone(), before, now: topic.partitions }));
            }
            self.extend(index, topic, core)?;
        }
        Ok(None)
    }

    /// Adds a topic that has become known. False while it is not.
    pub(super) fn add<E>(&mut self, name: &str, directory: &Directory, core: &mut Core<E>) -> Result<bool, Disorder> {
        let Some(topic) = directory.get(name) else { return Ok(false) };
        if !self.by_name.contains_key(name) {
            let index = self.routes.len();
            self.routes.push(Route { name: name.to_owned(), topic, lanes: Vec::new() });
            self.by_name.insert(name.to_owned(), index);
            self.extend(index, topic, core)?;
        }
        Ok(true)
    }

    /// One lane for each partition.
    fn extend<E>(&mut self, index: usize, topic: Topic, core: &mut Core<E>) -> Result<(), Disorder> {
        let Some(route) = self.routes.get_mut(index) else { return Ok(()) };
        for partition in (0..).take(topic.partitions as usize).skip(route.lanes.len()) {
            // The router alone adds lanes, so their indexes are those of this list.
            route.lanes.push(core.add_lane()?);
            self.of_lane.push((index, partition));
        }
        Ok(())
    }
}
