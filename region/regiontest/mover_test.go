package regiontest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

// mover is an operator's command that moves a namespace, and what it was told.
type mover struct {
	cancel context.CancelFunc
	steps  chan string // closed at the end
	done   chan struct{}
	err    error // once done

	mu   sync.Mutex
	said []string
}

var errTooLong = errors.New("it takes too long")

// mover begins to move a namespace, by way of the region that it is to go to.
func (w *world) mover(namespace, to string, abandon bool) *mover {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	m := &mover{cancel: cancel, steps: make(chan string, 1000), done: make(chan struct{})}
	admin := pb.NewAdminServiceClient(w.Conn(to))
	go func() {
		defer close(m.done)
		defer close(m.steps)
		m.err = m.follow(admin.MoveNamespace(ctx, &pb.MoveNamespaceRequest{Namespace: namespace, ToRegion: to, Abandon: abandon, Actor: "test"}))
	}()
	w.t.Cleanup(func() { m.kill() })
	return m
}

func (m *mover) follow(stream interface {
	Recv() (*pb.MoveNamespaceResponse, error)
}, err error,
) error {
	for err == nil {
		var step *pb.MoveNamespaceResponse
		if step, err = stream.Recv(); err != nil {
			break
		}
		m.mu.Lock()
		m.said = append(m.said, fmt.Sprintf("%s %d %s", step.GetStep(), step.GetCount(), step.GetDetail()))
		m.mu.Unlock()
		m.steps <- step.GetStep()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// kill ends the command as kill -9 does, and returns when it is gone.
func (m *mover) kill() {
	m.cancel()
	<-m.done
}

// reaches waits until a step is reached.
func (m *mover) reaches(step string, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case reached, ok := <-m.steps:
			if !ok || reached == step {
				return ok
			}
		case <-timer.C:
			return false
		}
	}
}

// ends waits until the command ends, and returns its error.
func (m *mover) ends(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-m.done:
		return m.err
	case <-timer.C:
		return fmt.Errorf("%w: %s", errTooLong, m.log())
	}
}

func (m *mover) log() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.said, "; ")
}
