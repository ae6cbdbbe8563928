// Package region joins the servers of several regions. Each key has one home region, which its
// namespace's placement gives it; a server carries out what is at home with it and asks the
// home for the rest. It imports neither the server nor the client nor a metrics library.
//
// # Tour
//
//   - placement/: which region is the home of a key ([placement.Rule]).
//   - topology.go: the file that says which regions there are ([Topology]).
//   - region.go: [Region], all that a server knows of regions, and what it is made of.
//   - atlas.go: what is known of every namespace's placement.
//   - gossip.go: how placements spread; first.go: how a namespace gets its first one.
//   - peer.go, link.go: another region, which is watched all the time.
//   - router.go, router_operator.go: [Router], a [store.Backend] over all regions;
//     router_namespaces.go: namespaces are in all of them; operations.go: how each operation is
//     sent on; standin.go: another region's store, where this process has it open.
//   - service.go, service_forward.go: the PeerService, which stands over this region's own store.
//   - members.go, accept.go: which store is that of which region, and when it is a home.
//   - notice.go, observer.go: what an operator should see.
//
// # Why no key has two homes
//
// The store is the authority. It keeps the placement of every namespace, and refuses what was
// sent by another epoch. A first placement is made only once all regions propose the same one,
// so that whoever makes it makes the same; later ones are made by moves, which freeze first.
// What a process remembers of placements only decides whom it asks, and in which epoch's name.
//
// A store is no home before all other regions know it as this region's, and another one in its
// place is not believed: it has forgotten what the keys were used for. An operator accepts it
// then; the acceptances of a region's stores are numbered, and of two the later one holds. A store
// that hears of a later one than it has acted on is no home, until it is itself the one that was
// accepted and has begun a recovery. It hears the others before it serves after a start, for a
// moment only: one that was replaced serves where no other region reaches it and none is reached,
// and has to be switched off.
//
// A call takes one hop at most: the PeerService never sends on. A call that broke off may have
// been carried out; it is answered ErrHomeUnreachable, and nothing is ever claimed in the stead
// of a home that cannot be asked.
package region
