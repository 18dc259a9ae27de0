# nix-build packaging/nix: the command and the libraries from this source tree.
{ pkgs ? import <nixpkgs> { } }:
let
  # Opened on first use, so no linker sees them.
  opened = with pkgs; [ curl libarchive libmicrohttpd libedit openssl ];
in
pkgs.stdenv.mkDerivation {
  pname = "tinkc";
  version = builtins.head (builtins.match ".*project\\(tinkc VERSION ([0-9.]+).*" (builtins.readFile ../../CMakeLists.txt));
  src = pkgs.lib.cleanSource ../..;
  nativeBuildInputs = with pkgs; [ cmake ninja pkg-config python3 ];
  buildInputs = opened ++ (with pkgs; [ pcre2 sqlite utf8proc zstd ]);
  cmakeFlags = [
    "-DTINKC_TESTS=OFF"
    "-DTINKC_CUDA=OFF"
    "-DCMAKE_INSTALL_RPATH=${pkgs.lib.makeLibraryPath opened}"
  ];
  postPatch = "patchShebangs tools";
  doInstallCheck = true;
  installCheckPhase = ''
    test "$(HOME=$TMPDIR $out/bin/tinkc sample --temperature 0 'What is 7 + 5?')" = 12
  '';
  meta = {
    description = "Fine-tune and sample language models with the Tinker API, locally or hosted";
    license = pkgs.lib.licenses.asl20;
    platforms = [ "x86_64-linux" "aarch64-linux" ];
    mainProgram = "tinkc";
  };
}
