package region

import (
	"context"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// remoteParty is another region as a [Party], asked in somebody's name.
type remoteParty struct {
	// ask makes one call, and returns what its error means.
	ask          func(ctx context.Context, call func(context.Context, pb.PeerServiceClient) error) error
	region, here string
	storeID      string // of the region that asks
	caller       string
}

var _ Party = (*remoteParty)(nil)

// Namespace implements [Party].
func (p *remoteParty) Namespace(ctx context.Context, name string) (store.Namespace, error) {
	var resp *pb.GetPlacementsResponse
	err := p.ask(ctx, func(ctx context.Context, peer pb.PeerServiceClient) (err error) {
		resp, err = peer.GetPlacements(ctx, &pb.GetPlacementsRequest{Region: p.region, FromRegion: p.here, FromStoreId: p.storeID})
		return err
	})
	if err != nil {
		return store.Namespace{}, err
	}
	for _, known := range resp.GetPlacements() {
		if known.GetNamespace().GetName() == name {
			return storepb.NamespaceAnswerFromProto(known.GetNamespace())
		}
	}
	return store.Namespace{}, store.NamespaceUnknown(name)
}

// Place implements [Party].
func (p *remoteParty) Place(ctx context.Context, namespace string, next store.Placement) (store.Placed, error) {
	var resp *pb.PlaceNamespaceResponse
	err := p.ask(ctx, func(ctx context.Context, peer pb.PeerServiceClient) (err error) {
		resp, err = peer.PlaceNamespace(ctx, &pb.PlaceNamespaceRequest{
			Region: p.region, FromRegion: p.here, FromStoreId: p.storeID, Caller: p.caller, Namespace: namespace, Placement: storepb.PlacementToProto(next),
		})
		return err
	})
	if err != nil {
		return store.Placed{}, err
	}
	return storepb.PlacedFromProto(resp)
}

// Held implements [Party].
func (p *remoteParty) Held(ctx context.Context, namespace string, epoch int64) (Held, error) {
	return countHeld(ctx, namespace, func(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
		var resp *pb.ForwardResponse
		err := p.ask(ctx, func(ctx context.Context, peer pb.PeerServiceClient) (err error) {
			resp, err = peer.Forward(ctx, &pb.ForwardRequest{
				Region: p.region, FromRegion: p.here, FromStoreId: p.storeID, Epoch: epoch, Caller: p.caller,
				Operation: &pb.ForwardRequest_ListRecords{ListRecords: storepb.ListRequestToProto(req)},
			})
			return err
		})
		if err != nil {
			return store.RecordPage{}, err
		}
		return storepb.RecordPageFromProto(resp.GetListRecords())
	})
}

// Export implements [Party].
func (p *remoteParty) Export(ctx context.Context, namespace string, revision int64, pageToken string) (Exported, error) {
	var resp *pb.ExportRecordsResponse
	err := p.ask(ctx, func(ctx context.Context, peer pb.PeerServiceClient) (err error) {
		resp, err = peer.ExportRecords(ctx, &pb.ExportRecordsRequest{
			Region: p.region, FromRegion: p.here, FromStoreId: p.storeID, Caller: p.caller, Namespace: namespace, Revision: revision, PageToken: pageToken,
		})
		return err
	})
	if err != nil {
		return Exported{}, err
	}
	page := Exported{NextPageToken: resp.GetNextPageToken()}
	for _, m := range resp.GetRecords() {
		in, err := storepb.MovedFromProto(m)
		if err != nil {
			return Exported{}, err
		}
		page.Records = append(page.Records, in)
	}
	return page, nil
}

// Forget implements [Party].
func (p *remoteParty) Forget(ctx context.Context, namespace string, revision int64) (bool, error) {
	var resp *pb.ForgetRecordsResponse
	err := p.ask(ctx, func(ctx context.Context, peer pb.PeerServiceClient) (err error) {
		resp, err = peer.ForgetRecords(ctx, &pb.ForgetRecordsRequest{
			Region: p.region, FromRegion: p.here, FromStoreId: p.storeID, Caller: p.caller, Namespace: namespace, Revision: revision,
		})
		return err
	})
	return resp.GetMore(), err
}
